"""A KV cache with room to grow: appending writes in place instead of copying everything.

transformers' ``DynamicCache`` concatenates all keys and values at every step, which costs more than
the attention itself when many rows are decoded one token at a time.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 128  # positions allocated beyond what is needed now


class RoomyLayer(DynamicLayer):
    """Keys and values ``[B, heads, T, D]`` are views of buffers that are longer than T."""

    keys: Tensor
    values: Tensor
    buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append ``[B, heads, new, D]``; returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        used = self.get_seq_length()
        total = used + key_states.shape[-2]
        if self.buffers is None or total > self.buffers[0].shape[-2]:
            empty = key_states[..., :0, :], value_states[..., :0, :]
            keys, values = (self.keys, self.values) if used else empty
            self.buffers = _roomy(keys, total + ROOM), _roomy(values, total + ROOM)
        keys, values = self.buffers
        keys[..., used:total, :] = key_states
        values[..., used:total, :] = value_states
        self.keys, self.values = keys[..., :total, :], values[..., :total, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows; the buffers are made anew at the next append."""
        super().batch_select_indices(indices)
        self.buffers = None

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.buffers = None


def _roomy(states: Tensor, length: int) -> Tensor:
    wide = states.new_empty(*states.shape[:-2], length, states.shape[-1])
    wide[..., : states.shape[-2], :] = states
    return wide


def roomy_cache() -> Cache:
    """An empty cache for a model with full attention in every layer."""
    return Cache(layer_class_to_replicate=RoomyLayer)
