"""The "blocks" attention on a CPU: fused kernels for the context, plain products for the own block.

Attention over a set of keys can be computed per part of the set and merged: with ``lse`` the
logarithm of a part's softmax denominator, ``out = Σ_part exp(lse_part - lse) · out_part`` where
``lse = log Σ_part exp(lse_part)``. The backward of a part needs nothing of the other parts but the
merged ``out`` and ``lse``. So the long part, a row's context, goes to PyTorch's flash kernel for
CPUs, whose scores never leave the cache, and the short part, ``slots`` keys, is written out.

Masked scores are a large negative *finite* number: their weights underflow to exactly zero, and a
query that sees no context at all gets a weight of exactly zero for that part instead of NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dflash.model.layout import BlocksMask

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def merged_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlocksMask, scaling: float
) -> Tensor:
    """Attention of ``[B, heads, Q, D]`` over ``[context | own block]``; returns the same shape."""
    dtype = query.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
    out: Tensor = _Merged.apply(query.to(dtype), key.to(dtype), value.to(dtype), mask, scaling)
    return out


class _Merged(torch.autograd.Function):
    """Forward and backward by parts; intermediate sums are in fp32."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: BlocksMask, scaling: float
    ) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            groups = _by_group(query, key.shape[1])  # [B, kv, group, Q, D]
            out, lse = _context_forward(groups, key, value, mask, scaling)
            own = _OwnBlock(groups, key, value, mask)
            scores, lse = own.scores(scaling), own.by_block(lse[..., None])
            total = torch.logaddexp(lse, scores.logsumexp(dim=-1, keepdim=True))
            weights = scores.sub_(total).exp_()  # [B, kv, N, group*slots, slots]
            merged = torch.addcmul(weights @ own.value, own.by_block(out), (lse - total).exp_())
            result = own.by_query(merged).to(query.dtype)  # [B, kv, group, Q, D]
        ctx.save_for_backward(query, key, value, result, own.by_query(total)[..., 0], weights)
        ctx.mask, ctx.scaling = mask, scaling
        return result.reshape(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, result, lse, weights = ctx.saved_tensors
        mask, scaling = ctx.mask, ctx.scaling
        with torch.autocast("cpu", enabled=False):
            groups = _by_group(query, key.shape[1])
            grad = _by_group(grad, key.shape[1])
            d_query, d_key, d_value = _context_backward(
                grad, groups, key, value, result, lse, mask, scaling
            )
            own = _OwnBlock(groups, key, value, mask)
            d_out = own.by_block(grad).float()
            delta = (d_out * own.by_block(result)).sum(dim=-1, keepdim=True)
            d_weights = d_out @ own.value.transpose(-1, -2)
            d_scores = d_weights.sub_(delta).mul_(weights).mul_(scaling)
            d_query += own.by_query(d_scores @ own.key)
            start = mask.context_length
            d_key[:, :, start:] = (d_scores.transpose(-1, -2) @ own.query).flatten(2, 3)
            d_value[:, :, start:] = (weights.transpose(-1, -2) @ d_out).flatten(2, 3)
        shape = query.shape
        return d_query.reshape(shape).to(query.dtype), d_key, d_value, None, None


def _by_group(query: Tensor, kv_heads: int) -> Tensor:
    """``[B, heads, Q, D]`` to ``[B, kv_heads, group, Q, D]``."""
    batch, _, queries, dim = query.shape
    return query.reshape(batch, kv_heads, -1, queries, dim)


def _parts(mask: BlocksMask, batch: int, group: int) -> list[tuple[int, int, int]]:
    """(row, group member, how many context features the row's blocks see at most)."""
    extents = mask.extents
    return [(row, member, extents[row]) for row in range(batch) for member in range(group)]


def _context_forward(
    groups: Tensor, key: Tensor, value: Tensor, mask: BlocksMask, scaling: float
) -> tuple[Tensor, Tensor]:
    """The context part alone: output ``[B, kv, group, Q, D]`` and its lse ``[B, kv, group, Q]``."""
    out = torch.empty(groups.shape, dtype=groups.dtype)
    lse = torch.empty(groups.shape[:-1])
    for row, member, extent in _parts(mask, groups.shape[0], groups.shape[2]):
        here = slice(row, row + 1)
        out[here, :, member], lse[here, :, member] = _FLASH(
            groups[here, :, member],
            key[here, :, :extent],
            value[here, :, :extent],
            attn_mask=mask.bias[here, :, :, :extent],
            scale=scaling,
        )
    return out, lse


def _context_backward(
    grad: Tensor,
    groups: Tensor,
    key: Tensor,
    value: Tensor,
    result: Tensor,
    lse: Tensor,
    mask: BlocksMask,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients through the context part; key and value gradients of the own part are left zero."""
    d_query = torch.empty(groups.shape)
    d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
    for row, member, extent in _parts(mask, groups.shape[0], groups.shape[2]):
        here = slice(row, row + 1)
        d_q, d_k, d_v = _FLASH_BACKWARD(
            grad[here, :, member],
            groups[here, :, member],
            key[here, :, :extent],
            value[here, :, :extent],
            result[here, :, member],
            lse[here, :, member],
            0.0,
            False,
            attn_mask=mask.bias[here, :, :, :extent],
            scale=scaling,
        )
        d_query[here, :, member] = d_q
        d_key[here, :, :extent] += d_k
        d_value[here, :, :extent] += d_v
    return d_query, d_key, d_value


class _OwnBlock:
    """The own-block part in fp32; rows are a block's slots, once per query head of the group."""

    def __init__(
        self,
        groups: Tensor,
        key: Tensor,
        value: Tensor,
        mask: BlocksMask,
    ) -> None:
        assert mask.own is not None  # the dispatcher in blocks.py sees to it
        self.group, self.slots, self.visible = groups.shape[2], mask.slots, mask.own
        start = mask.context_length
        self.key = key[:, :, start:].unflatten(2, (-1, mask.slots)).float()  # [B, kv, N, slots, D]
        self.value = value[:, :, start:].unflatten(2, (-1, mask.slots)).float()
        self.query = self.by_block(groups).float()

    def scores(self, scaling: float) -> Tensor:
        """``[B, kv, N, group*slots, slots]``, -inf where a slot must not look."""
        scores = (self.query @ self.key.transpose(-1, -2)).mul_(scaling)
        hidden = ~self.visible[:, None, :, None]  # [B, 1, N, 1, slots, slots]
        scores.unflatten(3, (self.group, self.slots)).masked_fill_(hidden, float("-inf"))
        return scores

    def by_block(self, x: Tensor) -> Tensor:
        """``[B, kv, group, Q, d]`` to ``[B, kv, N, group*slots, d]``."""
        return x.unflatten(3, (-1, self.slots)).transpose(2, 3).flatten(3, 4)

    def by_query(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`by_block`."""
        return x.unflatten(3, (self.group, self.slots)).transpose(2, 3).flatten(3, 4)
