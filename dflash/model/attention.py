"""Attention of a draft layer: queries from the block, keys and values from context and block.

Differences from ``Qwen3Attention`` (paper §4.2): a second stream of keys and values is made of the
fused target features, by the same projections, and nothing is causal unless a mask says so. What
the switches of design §5 change is passed in as :class:`AttentionComponents`; the forward has no
flags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.models.qwen3.modeling_qwen3 import (
    ALL_ATTENTION_FUNCTIONS,
    Qwen3Config,
    Qwen3RMSNorm,
    eager_attention_forward,
    rotate_half,
)

from dflash.model.config import switches_of
from dflash.model.switches import DrafterSwitches

Stream = Literal["context", "block"]
Rotary = tuple[Tensor, Tensor]  # cos, sin: [B, S, head_dim]


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Apply rotary positions to ``[B, heads, S, head_dim]``."""
    cos, sin = rotary[0].unsqueeze(1), rotary[1].unsqueeze(1)
    return (x * cos) + (rotate_half(x) * sin)


def unrotated(x: Tensor, rotary: Rotary) -> Tensor:
    """Leave ``x`` without positions: ``rope.context=false``."""
    return x


Rotation = Callable[[Tensor, Rotary], Tensor]
# How a projected head becomes a query or key, from (x, its norm, its rotation, cos and sin).
Encoding = Callable[[Tensor, nn.Module, Rotation, Rotary], Tensor]


def norm_then_rotate(x: Tensor, norm: nn.Module, rotation: Rotation, rotary: Rotary) -> Tensor:
    """Qwen3's order."""
    return rotation(norm(x), rotary)


def rotate_then_norm(x: Tensor, norm: nn.Module, rotation: Rotation, rotary: Rotary) -> Tensor:
    """HunyuanVL's order."""
    return norm(rotation(x, rotary))


ENCODINGS: dict[str, Encoding] = {"pre_rope": norm_then_rotate, "post_rope": rotate_then_norm}
NORMED: dict[str, frozenset[str]] = {
    "both": frozenset("qk"),
    "q": frozenset("q"),
    "k": frozenset("k"),
    "none": frozenset(),
}


@dataclass(frozen=True)
class AttentionComponents:
    """What one attention is assembled from, beyond the four projections."""

    q_norm: nn.Module  # nn.Identity where queries are not normalised
    k_norm: nn.Module
    encoding: Encoding
    streams: tuple[Stream, ...]  # what keys and values are made of, in the order of the keys
    context_rotation: Rotation
    k_proj_context: nn.Module | None  # None: target features share the block's projections
    v_proj_context: nn.Module | None

    @classmethod
    def of(cls, config: Qwen3Config, switches: DrafterSwitches) -> AttentionComponents:
        """The components that the switches name, in the sizes of ``config``."""
        normed = NORMED[switches.attention.qk_norm]
        streams: tuple[Stream, ...] = ("context",) if switches.context_keys else ()
        streams += ("block",) if switches.block_keys else ()
        # With one stream only, its projections are the layer's own.
        separate = switches.kv.projection == "separate" and len(streams) == 2
        return cls(
            q_norm=_head_norm(config) if "q" in normed else nn.Identity(),
            k_norm=_head_norm(config) if "k" in normed else nn.Identity(),
            encoding=ENCODINGS[switches.attention.qk_norm_place],
            streams=streams,
            context_rotation=rotate if switches.rope.context else unrotated,
            k_proj_context=_key_value_projection(config) if separate else None,
            v_proj_context=_key_value_projection(config) if separate else None,
        )


def _head_norm(config: Qwen3Config) -> nn.Module:
    return Qwen3RMSNorm(config.head_dim, eps=config.rms_norm_eps)


def _key_value_projection(config: Qwen3Config) -> nn.Linear:
    width = config.num_key_value_heads * config.head_dim
    return nn.Linear(config.hidden_size, width, bias=config.attention_bias)


class Qwen3DFlashAttention(nn.Module):
    """Multi-head attention of draft slots over target context and their own block.

    Args:
        config: a Qwen3 config, with or without DFlash fields.
        layer_idx: this layer's index into the KV cache.
        components: what to assemble; by default what the config's switches name.
    """

    def __init__(
        self,
        config: Qwen3Config,
        layer_idx: int,
        components: AttentionComponents | None = None,
    ) -> None:
        super().__init__()
        parts = components or AttentionComponents.of(config, switches_of(config))
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_causal = False  # kernels must never add a mask of their own
        width = config.num_attention_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=config.attention_bias)
        self.k_proj = _key_value_projection(config)
        self.v_proj = _key_value_projection(config)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=config.attention_bias)
        self.q_norm, self.k_norm = parts.q_norm, parts.k_norm
        self.k_proj_context, self.v_proj_context = parts.k_proj_context, parts.v_proj_context
        self.encoding, self.streams = parts.encoding, parts.streams
        self.rotations = {"context": parts.context_rotation, "block": rotate}

    def forward(
        self,
        hidden_states: Tensor,
        target_hidden: Tensor,
        position_embeddings: Rotary,
        attention_mask: Any = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from every draft slot.

        Args:
            hidden_states: ``[B, Q, H]`` block slots.
            target_hidden: ``[B, C, H]`` fused features of the *new* context.
            position_embeddings: cos and sin ``[B, C+Q, head_dim]``, context first.
            attention_mask: in the form of ``config._attn_implementation``; None shows every key.
            past_key_values: cache of committed context. New context and the block are appended; the
                caller drops the block again with :func:`dflash.model.cache.crop_to`.

        Returns:
            ``[B, Q, H]`` and the attention weights, where the implementation gives them.
        """
        block_rotary = _part(position_embeddings, -hidden_states.shape[1], None)
        q = self.encoding(
            self._heads(self.q_proj, hidden_states), self.q_norm, rotate, block_rotary
        )
        k, v = self._keys_and_values(hidden_states, target_hidden, position_embeddings)
        if past_key_values is not None and "context" in self.streams:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        out, weights = attend(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights

    def _keys_and_values(
        self, block: Tensor, context: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor]:
        """Both ``[B, kv_heads, K, head_dim]``, the streams one after the other."""
        projections = {
            "context": (self.k_proj_context or self.k_proj, self.v_proj_context or self.v_proj),
            "block": (self.k_proj, self.v_proj),
        }
        slots = block.shape[1]
        inputs = {"context": context, "block": block}
        rotaries = {
            "context": _part(rotary, None, -slots),
            "block": _part(rotary, -slots, None),
        }
        keys, values = [], []
        for stream in self.streams:
            k_proj, v_proj = projections[stream]
            heads = self._heads(k_proj, inputs[stream])
            keys.append(self.encoding(heads, self.k_norm, self.rotations[stream], rotaries[stream]))
            values.append(self._heads(v_proj, inputs[stream]))
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)

    def _heads(self, projection: nn.Module, x: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, heads, S, head_dim]``."""
        return projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def _part(rotary: Rotary, start: int | None, stop: int | None) -> Rotary:
    return rotary[0][:, start:stop], rotary[1][:, start:stop]
