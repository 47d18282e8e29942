"""A start at which the first draft layer already looks at what lies nearest.

With random or copied projections, queries of the draft and keys of the target's features have
nothing in common: attention starts spread evenly over hundreds of features, the latest one gets
half a percent of it, and a short training spends most of its steps on finding it. Rotary positions
make scores fall with distance wherever a query and a key share a constant part. So the first
layer's projections get one: a rank-one map that sends what all slots share (the mask embedding) and
what all keys of a kind share (their mean) to the same rotary channels, of the same size with and
without q/k norm. Most heads then start on the latest features, the others on the anchor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SHARPNESS = 3.0  # score of a key at distance 0 is SHARPNESS * sqrt(head_dim)
KEPT = 0.1  # share of the projections' former values that stays
ANCHOR_HEADS = 3  # every so many-th key-value head looks at the anchor, the others at the context


@torch.no_grad()
def nearsighted(layer: Any, mask_input: Tensor, anchor_mean: Tensor, context_mean: Tensor) -> None:
    """Give one draft layer's queries and keys their constant parts.

    Args:
        layer: a ``Qwen3DFlashDecoderLayer``.
        mask_input, anchor_mean: ``[H]``, a mask slot's and the mean anchor's input to attention.
        context_mean: ``[H]``, the mean fused feature.
    """
    attention = layer.self_attn
    channels = rotary_channels(attention.head_dim, SHARPNESS).to(mask_input)
    _add(attention.q_proj, channels, [least_norm([mask_input, anchor_mean], [1.0, 1.0])])
    means = [context_mean, anchor_mean, mask_input]
    looks = [
        *[least_norm(means, [1.0, 0.0, 0.0])] * (ANCHOR_HEADS - 1),  # at the context
        least_norm(means, [0.0, 1.0, 0.0]),  # at the anchor
    ]
    for projection in (attention.k_proj, attention.k_proj_context):
        if projection is not None:
            _add(projection, channels, looks)
    for norm in (attention.q_norm, attention.k_norm):
        if isinstance(weight := getattr(norm, "weight", None), Tensor):
            weight.fill_(SHARPNESS**0.5)


def _add(projection: nn.Linear, channels: Tensor, directions: list[Tensor]) -> None:
    """Head i maps the i-th direction (in turn) to ``channels``, beside a rest of what it did."""
    heads = projection.weight.view(-1, len(channels), projection.in_features)  # [heads, D, H]
    heads.mul_(KEPT)
    for index, head in enumerate(heads):
        head += torch.outer(channels, directions[index % len(directions)])


def rotary_channels(head_dim: int, sharpness: float) -> Tensor:
    """``[head_dim]``: the faster half of the rotary pairs, of norm ``sqrt(sharpness * head_dim)``.

    That is the size a q/k norm of weight ``sqrt(sharpness)`` gives, so drafters with and without
    norms start with the same scores.
    """
    pairs = head_dim // 2  # pair j is made of channels j and j + pairs, fastest first
    channels = torch.zeros(head_dim)
    channels[: max(1, pairs // 2)] = 1.0
    return channels / channels.norm() * (sharpness * head_dim) ** 0.5


def least_norm(vectors: list[Tensor], values: list[float]) -> Tensor:
    """The shortest ``[H]`` vector whose products with ``vectors`` are ``values``."""
    rows = torch.stack(vectors).double()  # [n, H]
    wanted = torch.tensor(values, dtype=torch.float64, device=rows.device)
    return (torch.linalg.pinv(rows) @ wanted).to(vectors[0].dtype)
