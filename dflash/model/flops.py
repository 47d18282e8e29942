"""What a drafter and its target compute, in floating-point operations, and how big they are.

Pure functions of sizes. A multiplication and an addition count as two operations; only matrix
products are counted (norms, rotations, softmax and embeddings are a fraction of a percent), as
``torch.utils.flop_counter`` does, against which the tests hold every formula. Padding is not
counted, and neither is what a kernel computes twice to save memory.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from transformers import PretrainedConfig

from dflash.model.conditioning import uses_context
from dflash.model.switches import DrafterSwitches, argument_of

STEP_CONTEXT = 1024  # committed features of the draft step whose cost is stated


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder; a drafter shares all but the depth with its target."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    @classmethod
    def of(cls, config: PretrainedConfig) -> Sizes:
        """The sizes of a Qwen3- or Llama-shaped model."""
        text = config.get_text_config(decoder=True)
        heads = text.num_attention_heads
        return cls(
            hidden=text.hidden_size,
            intermediate=text.intermediate_size,
            layers=text.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocab=text.vocab_size,
            tied=bool(text.tie_word_embeddings),
        )

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Entries of all matrices: embedding, layers and, where it is not tied, the head."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        layer = attention + 3 * self.hidden * self.intermediate
        tables = 1 if self.tied else 2
        return tables * self.vocab * self.hidden + self.layers * layer


@dataclass(frozen=True)
class Flops:
    """Operations by part of the drafter; attention is its projections, scores and mixing."""

    fusion: float
    attention: float
    mlp: float
    head: float

    @property
    def total(self) -> float:
        return self.fusion + self.attention + self.mlp + self.head


@dataclass(frozen=True)
class Work:
    """How much goes through a drafter; every count is a sum, so it scales.

    Attributes:
        context: context positions that are fused and projected to keys and values.
        slots: slots of all blocks.
        context_pairs: (slot, context key) pairs that are scored, hidden ones included.
        block_pairs: (slot, own-block key) pairs, hidden ones included.
        scored: slots whose logits are formed.
    """

    context: float
    slots: float
    context_pairs: float
    block_pairs: float
    scored: float

    def __mul__(self, factor: float) -> Work:
        return Work(*(value * factor for value in astuple(self)))

    @classmethod
    def of_draft_step(cls, context: int, block_size: int, new: int | None = None) -> Work:
        """One cached decode step.

        Args:
            context: committed features that the block sees, the new ones included.
            new: how many of them were committed by the step before, and so are not cached yet;
                by default as many as a block has slots, the most there can be.
        """
        slots = block_size
        new = min(context, slots) if new is None else new
        return cls(new, slots, slots * context, slots * slots, slots - 1)


def forward_flops(sizes: Sizes, switches: DrafterSwitches, taps: int, work: Work) -> Flops:
    """Forward of a drafter.

    Args:
        sizes: of the target; the depth is the switches'.
        taps: number of tapped layers.
    """
    context, block, rest = _projections(sizes, switches, work)
    return Flops(
        fusion=_fusion(sizes, switches, taps, work),
        attention=context + block + rest + _scores(sizes, switches, work),
        mlp=switches.num_layers * 6 * work.slots * sizes.hidden * _mlp_size(sizes, switches),
        head=2 * work.scored * sizes.hidden * draft_vocab(sizes, switches),
    )


def training_flops(sizes: Sizes, switches: DrafterSwitches, taps: int, work: Work) -> Flops:
    """Forward and backward of a drafter in training.

    A product costs one more for the gradient of its weight and one more for that of its input.
    Features have no gradient; the frozen head has none of its own weight, and the loss forms the
    gradient of its input in the forward pass.
    """
    forward = forward_flops(sizes, switches, taps, work)
    context, _, _ = _projections(sizes, switches, work)
    learned_context = forward.fusion > 0 or switches.features.norm
    return Flops(
        fusion=2 * forward.fusion,
        attention=3 * forward.attention - (0 if learned_context else context),
        mlp=3 * forward.mlp,
        head=2 * forward.head,
    )


def target_flops(
    sizes: Sizes, tokens: float, pairs: float, layers: int | None = None, scored: float = 0
) -> float:
    """Forward of the target.

    Args:
        tokens: positions computed.
        pairs: (query, key) pairs scored; ``T*(T+1)/2`` for a sequence of T under a causal kernel.
        layers: how many run; features need those up to the last tap. None means all.
        scored: positions whose logits are formed.
    """
    projections = 2 * tokens * 2 * sizes.hidden * (sizes.query_width + sizes.key_width)
    mlp = 6 * tokens * sizes.hidden * sizes.intermediate
    depth = sizes.layers if layers is None else layers
    head = 2 * scored * sizes.hidden * sizes.vocab
    return depth * (projections + mlp + 4 * pairs * sizes.query_width) + head


def draft_vocab(sizes: Sizes, switches: DrafterSwitches) -> int:
    """Rows of the draft head."""
    return sizes.vocab if switches.vocab == "full" else argument_of(switches.vocab)


def _mlp_size(sizes: Sizes, switches: DrafterSwitches) -> int:
    return sizes.intermediate if switches.mlp_size is None else switches.mlp_size


def _fusion(sizes: Sizes, switches: DrafterSwitches, taps: int, work: Work) -> float:
    if switches.kv.fusion == "none" or not uses_context(switches):
        return 0
    return 2 * work.context * taps * sizes.hidden**2


def _projections(sizes: Sizes, switches: DrafterSwitches, work: Work) -> tuple[float, float, float]:
    """Of context keys and values, of block keys and values, of queries and outputs."""
    depth = switches.num_layers
    key_value = 4 * depth * sizes.hidden * sizes.key_width
    context = key_value * work.context if switches.context_keys else 0
    block = key_value * work.slots if switches.block_keys else 0
    return context, block, 4 * depth * work.slots * sizes.hidden * sizes.query_width


def _scores(sizes: Sizes, switches: DrafterSwitches, work: Work) -> float:
    pairs = work.context_pairs * switches.context_keys + work.block_pairs * switches.block_keys
    return switches.num_layers * 4 * pairs * sizes.query_width
