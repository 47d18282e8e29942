"""A toy target, toy drafters and random training batches for them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from dflash.model import (
    DFlashDraftModel,
    DrafterSwitches,
    TrainingLayout,
    UserError,
    drafter_config,
    parse_dataclass,
)

VOCAB, HIDDEN, TARGET_LAYERS, MASK_TOKEN = 37, 24, 12, 5


def target_config(**sizes: Any) -> LlamaConfig:
    """A Llama target; six query heads share two key/value heads."""
    defaults = {
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": TARGET_LAYERS,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
    }
    return LlamaConfig(**{**defaults, **sizes})


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted names to nested dictionaries."""
    data: dict[str, Any] = {}
    for name, value in flat.items():
        group, _, key = name.rpartition(".")
        (data.setdefault(group, {}) if group else data)[key] = value
    return data


def toy_switches(**dotted: Any) -> DrafterSwitches:
    """Two layers and blocks of four unless told otherwise; ``a__b`` stands for the key ``a.b``."""
    flat = {name.replace("__", "."): value for name, value in dotted.items()}
    return parse_dataclass(
        DrafterSwitches, nested({"num_layers": 2, "block_size": 4, **flat}), "drafter"
    )


def toy_drafter(switches: DrafterSwitches, seed: int = 0) -> DFlashDraftModel:
    """A drafter with norm weights away from one, so that leaving a norm out shows."""
    torch.manual_seed(seed)
    draft = DFlashDraftModel(drafter_config(target_config(), switches, MASK_TOKEN)).eval()
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.15)
    return draft


@dataclass
class Batch:
    """Three rows of unequal length, with a block at position 0, overlaps, and padding blocks."""

    layout: TrainingLayout
    token_ids: Tensor  # [B, C]
    features: Tensor  # [B, C, F*H]
    embedding: nn.Embedding

    @classmethod
    def random(cls, block_size: int = 4, first_anchor: int = 0, seed: int = 1) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        layout = TrainingLayout(
            context_length=11,
            anchors=torch.tensor([[first_anchor, 4, 6, 10], [2, 3, 0, 5], [8, 1, 0, 0]]),
            valid=torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 0, 0]]).bool(),
            lengths=torch.tensor([11, 6, 9]),
            block_size=block_size,
        )
        embedding = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        embedding.weight.normal_(generator=generator)
        return cls(
            layout=layout,
            token_ids=torch.randint(VOCAB, (3, 11), generator=generator),
            features=torch.randn(3, 11, 5 * HIDDEN, generator=generator),
            embedding=embedding,
        )

    def anchor_ids(self) -> Tensor:
        """``[B, N]``"""
        return self.token_ids.gather(1, self.layout.anchors)


def training_forward(
    draft: DFlashDraftModel,
    batch: Batch,
    implementation: str = "sdpa",
    features: Tensor | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Hidden states of every block in the training layout, ``[B, N, slots, H]``."""
    draft.config._attn_implementation = implementation
    if noise is None:
        noise = draft.embed_block(batch.anchor_ids(), batch.embedding)
    if features is None:
        features = draft.context_of(batch.token_ids, batch.features, batch.embedding)
    hidden = draft(
        position_ids=batch.layout.position_ids(),
        attention_mask=batch.layout.mask(draft.switches, implementation),
        noise_embedding=noise.flatten(1, 2),
        target_hidden=features,
    )
    return hidden.unflatten(1, (-1, batch.layout.block_size))


AXES: dict[str, tuple[Any, ...]] = {
    "attention.context": ("full", "window:3", "latest", "index_causal", "none"),
    "attention.block": ("bidirectional", "causal", "diagonal"),
    "kv.source": ("target+draft", "draft", "target"),
    "kv.fusion": ("fused", "input", "none"),
    "kv.projection": ("shared", "separate"),
    "attention.qk_norm": ("both", "q", "k", "none"),
    "attention.qk_norm_place": ("pre_rope", "post_rope"),
    "rope.context": (True, False),
    "features.norm": (True, False),
}


def switches_from(flat: dict[str, Any]) -> DrafterSwitches | None:
    """The switches, or None where the combination is refused."""
    try:
        return toy_switches(**{name.replace(".", "__"): value for name, value in flat.items()})
    except UserError:
        return None


def every_combination(axes: dict[str, tuple[Any, ...]]) -> list[DrafterSwitches]:
    """All allowed combinations of the axes' values."""
    rows = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return [switches for row in rows if (switches := switches_from(row)) is not None]


def pairwise_combinations(axes: dict[str, tuple[Any, ...]]) -> list[DrafterSwitches]:
    """The defaults with every allowed pair of values of two axes."""
    found: dict[DrafterSwitches, None] = {}
    for one, other in itertools.combinations(axes, 2):
        for values in itertools.product(axes[one], axes[other]):
            switches = switches_from({one: values[0], other: values[1]})
            if switches is not None:
                found[switches] = None
    return list(found)
