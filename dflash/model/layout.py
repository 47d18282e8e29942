"""The training layout: a row's committed context, then many anchored blocks (paper §4.3).

One forward trains every block of a row at once. Blocks share the row's context features and never
see one another, so the hidden states of a block equal those of a decode step with the same prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from dflash.model.errors import UserError
from dflash.model.masks import Visibility, additive, block_mask
from dflash.model.switches import DrafterSwitches

HIDDEN = -1e30  # a score that no softmax can see; finite, so that a row of them is not NaN


@dataclass(frozen=True)
class BlocksMask:
    """What the attention function "blocks" needs: the two parts of a slot's row, never the rest.

    ``None`` stands for a kind of keys that the drafter lacks.
    """

    context: Tensor | None  # [B, N, 1 or slots, C] bool; 1 where the slots of a block agree
    own: Tensor | None  # [B, N, slots, slots] bool, query first
    slots: int

    @property
    def context_length(self) -> int:
        """Context keys per row, padding included; 0 without context keys."""
        return 0 if self.context is None else self.context.shape[-1]

    @cached_property
    def bias(self) -> Tensor:
        """The context part to add to scores, ``[B, 1, Q, C]``: 0, or finite and hugely negative."""
        assert self.context is not None
        rows, blocks, _, length = self.context.shape
        visible = self.context.expand(rows, blocks, self.slots, length)
        hidden = ~visible.reshape(rows, 1, blocks * self.slots, length)
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, HIDDEN)

    @cached_property
    def extents(self) -> list[int]:
        """Per row, one past the last context feature that any of its slots sees (at least 1)."""
        assert self.context is not None
        seen = self.context.flatten(1, 2).any(dim=1)  # [B, C]
        one_past = torch.arange(1, self.context_length + 1, device=seen.device)
        extents: list[int] = (seen * one_past).amax(dim=1).clamp(min=1).tolist()
        return extents


@dataclass(frozen=True)
class TrainingLayout:
    """Anchored blocks over one padded batch.

    Attributes:
        context_length: C, features per row, padding included; feature j belongs to position j.
        anchors: ``[B, N]`` integer positions of the blocks' slot 0.
        valid: ``[B, N]`` bool; the others are padding, attend to themselves and carry no loss.
        lengths: ``[B]`` integer; features at or after a row's length are padding and unseen.
        block_size: slots per block.
    """

    context_length: int
    anchors: Tensor
    valid: Tensor
    lengths: Tensor
    block_size: int

    def __post_init__(self) -> None:
        if self.anchors.is_floating_point() or self.lengths.is_floating_point():
            raise UserError.of("layout.anchors", self.anchors.dtype, "integer positions")
        if self.anchors.dim() != 2 or self.valid.shape != self.anchors.shape:
            shapes = (tuple(self.anchors.shape), tuple(self.valid.shape))
            raise UserError.of("layout.anchors, valid", shapes, "two equal shapes [B, N]")
        if self.lengths.shape != self.anchors.shape[:1]:
            raise UserError.of("layout.lengths", tuple(self.lengths.shape), "shape [B]")

    def position_ids(self) -> Tensor:
        """Absolute positions of the context, then of every block's slots: ``[B, C + N*slots]``."""
        rows = self.anchors.shape[0]
        context = torch.arange(self.context_length, device=self.anchors.device).expand(rows, -1)
        slots = self.anchors[:, :, None] + self._slots()  # [B, N, slots]
        return torch.cat([context, slots.flatten(1)], dim=1)

    def mask(self, switches: DrafterSwitches, implementation: str) -> Any:
        """The mask of all blocks in the form that an attention implementation takes.

        Args:
            switches: the drafter's; ``attention.leak`` takes effect here and only here.
            implementation: ``eager`` (additive float), ``sdpa`` (bool ``[B, 1, Q, K]``),
                ``flex_attention`` (BlockMask) or ``blocks`` (:class:`BlocksMask`).
        """
        if implementation not in _FORMS:
            raise UserError.of("attn_implementation", implementation, ", ".join(_FORMS))
        return _FORMS[implementation](self, Visibility.of(switches, training=True))

    def _slots(self) -> Tensor:
        return torch.arange(self.block_size, device=self.anchors.device)


def _context(layout: TrainingLayout, visibility: Visibility) -> Tensor:
    """Which features each block's slots see, ``[B, N, 1 or slots, C]`` bool."""
    device = layout.anchors.device
    keys = torch.arange(layout.context_length, device=device)  # [C]
    anchors = layout.anchors[:, :, None, None]  # [B, N, 1, 1]
    slots = layout._slots()[:, None]  # [slots, 1]
    visible = visibility.context(keys, anchors, slots)
    visible = visible & (keys < layout.lengths[:, None, None, None])
    visible = visible & layout.valid[:, :, None, None]
    if not visibility.block_keys:  # a slot without any key of its own needs one: feature 0
        visible = visible | ((keys == 0) & ~visible.any(dim=-1, keepdim=True))
    return visible


def _own(layout: TrainingLayout, visibility: Visibility) -> Tensor:
    """Which slots of its own block each slot sees, ``[B, N, slots, slots]`` bool."""
    rule = block_mask(visibility, layout.block_size, layout.anchors.device)
    itself = torch.eye(layout.block_size, dtype=torch.bool, device=layout.anchors.device)
    return torch.where(layout.valid[:, :, None, None], rule, itself)


def blocks_mask(layout: TrainingLayout, visibility: Visibility) -> BlocksMask:
    """The two parts, for "blocks"."""
    return BlocksMask(
        context=_context(layout, visibility) if visibility.context_keys else None,
        own=_own(layout, visibility) if visibility.block_keys else None,
        slots=layout.block_size,
    )


def dense_mask(layout: TrainingLayout, visibility: Visibility) -> Tensor:
    """The whole mask, ``[B, 1, Q, K]`` bool with ``Q = N*slots``."""
    rows, blocks = layout.anchors.shape
    slots, queries = layout.block_size, blocks * layout.block_size
    parts = blocks_mask(layout, visibility)
    columns = []
    if parts.context is not None:
        context = parts.context.expand(rows, blocks, slots, layout.context_length)
        columns.append(context.reshape(rows, queries, layout.context_length))
    if parts.own is not None:
        same = torch.eye(blocks, dtype=torch.bool, device=layout.anchors.device)
        # [B, N, slots, N, slots]: a block's own slots on the diagonal, nothing elsewhere
        wide = parts.own[:, :, :, None, :] & same[:, None, :, None]
        columns.append(wide.reshape(rows, queries, queries))
    return torch.cat(columns, dim=-1)[:, None]


def flex_mask(layout: TrainingLayout, visibility: Visibility) -> BlockMask:
    """The same as a flex_attention mask; attention evaluates it per tile.

    Building it is dense unless ``create_block_mask`` is compiled, which is not done here.
    """
    rows, blocks = layout.anchors.shape
    slots, queries = layout.block_size, blocks * layout.block_size
    context = layout.context_length if visibility.context_keys else 0
    keys = context + (queries if visibility.block_keys else 0)
    rescue = _rescue_keys(layout, visibility, context)

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block, slot = query // slots, query % slots
        anchor = layout.anchors[row, block]
        seen = (key < context) & (key < layout.lengths[row])
        seen = seen & visibility.context(key, anchor, slot)
        if visibility.block_keys:
            other = key - context
            same = (key >= context) & (other // slots == block)
            seen = seen | (same & visibility.block(other % slots, slot))
        return (seen & layout.valid[row, block]) | (key == rescue[row, query])

    return create_block_mask(
        visible, B=rows, H=None, Q_LEN=queries, KV_LEN=keys, device=str(layout.anchors.device)
    )


def _rescue_keys(layout: TrainingLayout, visibility: Visibility, context: int) -> Tensor:
    """The one key of a query with nothing else to see, ``[B, Q]``; -1 for all other queries."""
    rows, blocks = layout.anchors.shape
    queries = torch.arange(blocks * layout.block_size, device=layout.anchors.device)
    if visibility.block_keys:
        padding = ~layout.valid.repeat_interleave(layout.block_size, dim=1)
        return torch.where(padding, context + queries, -1)
    keys = torch.arange(layout.context_length, device=layout.anchors.device)
    seen = visibility.context(keys, layout.anchors[:, :, None, None], layout._slots()[:, None])
    seen = seen & (keys < layout.lengths[:, None, None, None])
    seen = seen.any(-1) & layout.valid[:, :, None]  # [B, N, 1 or slots]
    seen = seen.expand(rows, blocks, layout.block_size).reshape(rows, -1)
    return torch.where(seen, -1, torch.zeros_like(queries))


_FORMS = {
    "eager": lambda layout, visibility: additive(dense_mask(layout, visibility)),
    "sdpa": dense_mask,
    "flex_attention": flex_mask,
    "blocks": blocks_mask,
}
