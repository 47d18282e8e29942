"""One draft decoder layer: Qwen3's pre-norm block around the two-stream attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3MLP, Qwen3RMSNorm

from dflash.model.attention import AttentionComponents, Qwen3DFlashAttention, Rotary


class Qwen3DFlashDecoderLayer(GradientCheckpointingLayer):
    """Attention, then MLP, each with a pre-norm and a residual.

    Only the block is normalised on the way in: target features arrive already normalised, have no
    residual, no MLP and no queries, and so are the same at every depth (paper §4.2).
    """

    def __init__(
        self,
        config: Qwen3Config,
        layer_idx: int,
        components: AttentionComponents | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = Qwen3DFlashAttention(config, layer_idx, components)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        target_hidden: Tensor,
        position_embeddings: Rotary,
        attention_mask: Any = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """``[B, Q, H]`` to ``[B, Q, H]``; arguments as in :class:`Qwen3DFlashAttention`."""
        attended, _ = self.self_attn(
            self.input_layernorm(hidden_states),
            target_hidden,
            position_embeddings,
            attention_mask,
            past_key_values,
            **kwargs,
        )
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
