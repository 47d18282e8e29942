"""The attention function "blocks": training attention without block-to-block scores.

In the training layout a slot sees context features and its own block, never another block. Dense
attention still computes all ``(N*slots)²`` scores and masks them away. Here a slot's scores are two
short pieces, ``[context | own block]``, under one softmax, and the query heads of a group share
their keys and values, which are never repeated per head or per block.

Registered with transformers under the name ``blocks``. A mask that is not a :class:`BlocksMask`
belongs to a decode step, which has one block, and goes to sdpa.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

from dflash.model.blocks_cpu import merged_attention
from dflash.model.errors import UserError
from dflash.model.layout import BlocksMask


def blocks_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend in the training layout.

    Args:
        module: the calling attention.
        query: ``[B, heads, N*slots, D]``.
        key: ``[B, kv_heads, C + N*slots, D]``, context first; one of the two may be absent.
        value: as ``key``.
        attention_mask: a :class:`BlocksMask`, or what sdpa takes.
        dropout: 0; attention dropout is not implemented here.
        scaling: of the scores; ``D**-0.5`` by default.

    Returns:
        ``[B, N*slots, heads, D]`` and no weights.

    Raises:
        UserError: the config asks for attention dropout.
    """
    if not isinstance(attention_mask, BlocksMask):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if dropout:
        raise UserError.of("attention_dropout", dropout, "0.0 with attn_implementation=blocks")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    both = attention_mask.context is not None and attention_mask.own is not None
    attend = merged_attention if both and query.device.type == "cpu" else two_part_attention
    return attend(query, key, value, attention_mask, scaling).transpose(1, 2), None


def two_part_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlocksMask, scaling: float
) -> Tensor:
    """Attention written out, on any device; ``[B, heads, N*slots, D]`` in and out."""
    batch, heads, queries, dim = query.shape
    kv_heads, context = key.shape[1], mask.context_length
    blocks, group = queries // mask.slots, heads // kv_heads
    # the queries of one block together: [B, kv, N, group, slots, D]
    q = query.view(batch, kv_heads, group, blocks, mask.slots, dim).transpose(2, 3)
    own_shape = (batch, kv_heads, blocks, 1, mask.slots, dim)
    scores = []
    if mask.context is not None:
        flat = q.reshape(batch, kv_heads, -1, dim) @ key[:, :, :context].transpose(2, 3)
        scores.append(_hide(flat.view(*q.shape[:-1], context), mask.context))
    if mask.own is not None:
        own_key = key[:, :, context:].reshape(own_shape)
        scores.append(_hide(q @ own_key.transpose(-1, -2), mask.own))
    at_least = torch.promote_types(query.dtype, torch.float32)
    weights = (torch.cat(scores, dim=-1) * scaling).softmax(dim=-1, dtype=at_least)
    weights = weights.to(value.dtype)
    pieces = []
    if mask.context is not None:
        flat = weights[..., :context].reshape(batch, kv_heads, -1, context)
        pieces.append((flat @ value[:, :, :context]).view(q.shape))
    if mask.own is not None:
        pieces.append(weights[..., context:] @ value[:, :, context:].reshape(own_shape))
    return torch.stack(pieces).sum(dim=0).transpose(2, 3).reshape(query.shape)


def _hide(scores: Tensor, visible: Tensor) -> Tensor:
    """``[B, kv, N, group, slots, K]`` scores, -inf where not ``visible [B, N, …, K]``."""
    return scores.masked_fill(~visible[:, None, :, None], float("-inf"))


AttentionInterface.register("blocks", blocks_attention_forward)
