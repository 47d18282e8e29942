"""Who sees whom: visibility predicates on integer positions.

One row of a training sequence (paper §4.3, and the decode step when there is one block)::

    keys:      context features 0 … C-1      | slots of block 0 | slots of block 1 | …
    query      key < anchor (+ leak), cut by | only the query's own block, cut by
    slot k:    ``attention.context``         | ``attention.block``

The predicates are pure, broadcast, and work on positions of an integer type only: a comparison in a
float type would go wrong at long positions (bf16 has 8 bits). The dense builders, the
flex_attention mask and the "blocks" kernel all call them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches, argument_of

# (key position, anchor position, slot index) -> visible
ContextRule = Callable[[Tensor, Tensor, Tensor], Tensor]
# (key slot, query slot) -> visible
BlockRule = Callable[[Tensor, Tensor], Tensor]


def full(key: Tensor, anchor: Tensor, slot: Tensor) -> Tensor:
    """Every committed feature."""
    return key < anchor


def index_causal(key: Tensor, anchor: Tensor, slot: Tensor) -> Tensor:
    """Features of index 0 … k for slot k: a causal flag aligned to the top left."""
    return (key < anchor) & (key <= slot)


def window(width: int) -> ContextRule:
    """The ``width`` latest committed features, the same ones for every slot of the block."""

    def rule(key: Tensor, anchor: Tensor, slot: Tensor) -> Tensor:
        return (key < anchor) & (key >= anchor - width)

    return rule


def hidden(key: Tensor, anchor: Tensor, slot: Tensor) -> Tensor:
    """Nothing of the context."""
    return (key < anchor) & False


CONTEXT_RULES: dict[str, ContextRule] = {
    "full": full,
    "latest": window(1),
    "index_causal": index_causal,
    "none": hidden,
}


def context_rule(name: str) -> ContextRule:
    """The rule of ``attention.context``; ``window:<w>`` carries its width."""
    return window(argument_of(name)) if name.startswith("window:") else CONTEXT_RULES[name]


def bidirectional(key_slot: Tensor, slot: Tensor) -> Tensor:
    """Every slot of the own block."""
    return (key_slot >= 0) & (slot >= 0)


def causal(key_slot: Tensor, slot: Tensor) -> Tensor:
    """The slot itself and those before it."""
    return key_slot <= slot


def diagonal(key_slot: Tensor, slot: Tensor) -> Tensor:
    """The slot itself."""
    return key_slot == slot


BLOCK_RULES: dict[str, BlockRule] = {
    "bidirectional": bidirectional,
    "causal": causal,
    "diagonal": diagonal,
}


@dataclass(frozen=True)
class Visibility:
    """The rules of one drafter, and which of the two kinds of keys it has at all."""

    context: ContextRule
    block: BlockRule
    context_keys: bool
    block_keys: bool
    everything: bool  # neither rule hides a committed feature or an own slot

    @classmethod
    def of(cls, switches: DrafterSwitches, *, training: bool) -> Visibility:
        """``training`` turns on the negative control ``attention.leak``, which decoding lacks."""
        attention = switches.attention
        rule = context_rule(attention.context)
        leak = attention.leak if training else 0
        sees_context = attention.context == "full" or not switches.context_keys
        sees_block = attention.block == "bidirectional" or not switches.block_keys
        return cls(
            context=_leaking(rule, leak) if leak else rule,
            block=BLOCK_RULES[attention.block],
            context_keys=switches.context_keys,
            block_keys=switches.block_keys,
            everything=sees_context and sees_block,
        )


def _leaking(rule: ContextRule, leak: int) -> ContextRule:
    """Add the ``leak`` features from the anchor on to whatever ``rule`` shows."""

    def leaking(key: Tensor, anchor: Tensor, slot: Tensor) -> Tensor:
        return rule(key, anchor, slot) | ((key >= anchor) & (key < anchor + leak))

    return leaking


def block_mask(visibility: Visibility, block_size: int, device: torch.device) -> Tensor:
    """Own-block visibility, ``[slots, slots]`` bool, query first."""
    slots = torch.arange(block_size, device=device)
    return visibility.block(slots[None, :], slots[:, None])


def decode_mask(
    visibility: Visibility, context_length: int, block_size: int, device: torch.device
) -> Tensor | None:
    """The mask of one decode step: all committed context, then one block.

    Returns:
        ``[1, 1, Q, K]`` bool with ``K = context_length + Q`` (less the kinds of keys the drafter
        lacks), or None when everything is visible, which lets kernels take their fast path.
    """
    if visibility.everything:
        return None
    parts = []
    if visibility.context_keys:
        keys = torch.arange(context_length, device=device)[None, :]
        slots = torch.arange(block_size, device=device)[:, None]
        anchor = torch.full((1, 1), context_length, device=device)
        parts.append(visibility.context(keys, anchor, slots).expand(block_size, -1))
    if visibility.block_keys:
        parts.append(block_mask(visibility, block_size, device))
    return torch.cat(parts, dim=-1)[None, None]


def additive(mask: Tensor) -> Tensor:
    """A bool mask as what eager attention adds to its scores: 0 where visible, -inf elsewhere."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, float("-inf"))


def in_form(mask: Tensor | None, implementation: str) -> Tensor | None:
    """A decode mask as an attention implementation takes it.

    Raises:
        UserError: the implementation takes no mask at all, and one is needed.
    """
    if mask is None:
        return None
    if implementation not in _FORMS:
        raise UserError.of("attn_implementation", implementation, ", ".join(_FORMS))
    return _FORMS[implementation](mask)


_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "eager": additive,
    "sdpa": lambda mask: mask,
    "flex_attention": additive,
    "blocks": lambda mask: mask,
}
