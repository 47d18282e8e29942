"""What a drafter is fed and what it proposes, the same way for decoding and for replay.

Drafter and target may be of different precision: everything of the target's is cast to the
drafter's on the way in, and the drafter's output to the head's on the way out.
"""

from __future__ import annotations

from torch import Tensor, nn

from dflash.model import DFlashDraftModel

__all__ = ["argmax_tokens", "embedded_blocks", "embedded_context"]


def embedded_blocks(drafter: DFlashDraftModel, anchor_ids: Tensor, embedding: nn.Module) -> Tensor:
    """The slots of each anchor's block, one block after the other. ``[b, N] -> [b, N*B, H]``"""
    return drafter.embed_block(anchor_ids, embedding).flatten(1, 2).to(drafter.dtype)


def embedded_context(
    drafter: DFlashDraftModel, token_ids: Tensor, features: Tensor | None, embedding: nn.Module
) -> Tensor:
    """What the drafter knows of committed tokens ``[b, C]``. ``[b, C, F*H]`` or ``[b, C, H]``"""
    return drafter.context_of(token_ids, features, embedding).to(drafter.dtype)


def argmax_tokens(drafter: DFlashDraftModel, hidden: Tensor, head: nn.Module) -> Tensor:
    """The likeliest token of each slot. ``[..., H] -> [...]`` token ids"""
    dtype = head.get_parameter("weight").dtype
    draft_ids = drafter.draft_logits(hidden.to(dtype), head).argmax(dim=-1)
    return drafter.to_token_ids(draft_ids)
