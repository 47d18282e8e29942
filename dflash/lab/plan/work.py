"""What one cell computes and keeps, from its configuration and the lengths of its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from dflash.data.anchors import ANCHOR_RULES, generator_for
from dflash.lab.config import LabConfig
from dflash.lab.plan.data import Lengths
from dflash.lab.stages.answers import Split
from dflash.lab.stages.target import TargetInfo
from dflash.model.flops import (
    Flops,
    Sizes,
    Work,
    draft_vocab,
    forward_flops,
    target_flops,
    training_flops,
)
from dflash.model.switches import DrafterSwitches
from dflash.model.taps import resolve_taps
from dflash.training.config import total_steps

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class CellWork:
    """One arm, any seed.

    Attributes:
        parameters: trainable ones.
        train: lengths of all training answers.
        evaluation: lengths of all evaluation answers.
    """

    config: LabConfig
    info: TargetInfo
    parameters: int
    train: Lengths
    evaluation: Lengths

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes.of(self.info.hf_config)

    @property
    def switches(self) -> DrafterSwitches:
        return self.config.drafter

    @cached_property
    def taps(self) -> tuple[int, ...]:
        return resolve_taps(self.switches.features.taps, self.info.num_layers)

    @property
    def draft_vocab(self) -> int:
        return draft_vocab(self.sizes, self.switches)

    @cached_property
    def sequences(self) -> Lengths:
        """What training takes of its answers."""
        return self.train.trainable(self.config.train.max_length)

    @cached_property
    def steps(self) -> int:
        """Optimizer steps."""
        return total_steps(self.config.train, len(self.sequences.answer))

    @property
    def passes(self) -> float:
        """How often a run reads every sequence, on average."""
        seen = self.steps * self.config.train.sequences
        return seen / max(1, len(self.sequences.answer))

    @property
    def train_tokens(self) -> float:
        """Positions that a run reads, prompts included."""
        return self.passes * self.sequences.tokens

    @cached_property
    def run_work(self) -> Work:
        """All of a training run."""
        train = self.config.train
        work = sequence_work(
            self.sequences, train.anchors, train.anchors_per_sequence, self.switches.block_size
        )
        return work * self.passes

    @cached_property
    def run_flops(self) -> Flops:
        """Forward and backward of the drafter over a training run."""
        return training_flops(self.sizes, self.switches, len(self.taps), self.run_work)

    @cached_property
    def online_flops(self) -> float:
        """The target's forward inside training: 0 where features are stored or not read."""
        if self.config.data.mode != "online" or not self.reads_features:
            return 0.0
        return self.passes * self.feature_flops(self.sequences)

    @property
    def training_flops(self) -> float:
        """Everything that a training run computes."""
        return self.run_flops.total + self.online_flops

    @property
    def reads_features(self) -> bool:
        return self.switches.kv.fusion != "none"

    def feature_flops(self, lengths: Lengths) -> float:
        """The target's layers up to the last tap, over whole sequences."""
        tokens = (lengths.prompt + lengths.answer).astype(float)
        pairs = float((tokens * (tokens + 1) / 2).sum())
        return target_flops(self.sizes, float(tokens.sum()), pairs, layers=max(self.taps) + 1)

    def answer_flops(self, lengths: Lengths) -> float:
        """The target answering: every token through every layer, logits for the answer's."""
        tokens = (lengths.prompt + lengths.answer).astype(float)
        pairs = float((tokens * (tokens + 1) / 2).sum())
        scored = float(lengths.answer.sum())
        return target_flops(self.sizes, float(tokens.sum()), pairs, scored=scored)

    def replay_flops(self) -> float:
        """The drafter once at every anchor of the evaluation answers."""
        work = sequence_work(self.evaluation, "all", 0, self.switches.block_size)
        every_slot = replace(work, scored=work.slots * (1 - 1 / self.switches.block_size))
        return forward_flops(self.sizes, self.switches, len(self.taps), every_slot).total

    @property
    def decoded_answers(self) -> float:
        """Answers that are really decoded."""
        asked = {name: count for name, count in self.config.data.eval.items() if count}
        share = {
            name: min(1.0, self.config.decode.prompts_per_bench / count)
            for name, count in asked.items()
        }
        return sum(count * share.get(name, 1.0) for name, count in self.evaluation.sets.items())

    @property
    def decoded_tokens(self) -> float:
        """Tokens of one decoding of them, at most."""
        return self.decoded_answers * self.config.decode.new_tokens

    def plain_flops(self) -> float:
        """Plain decoding, at most."""
        return self._decoding_flops(1)

    def speculative_flops(self) -> float:
        """The target's verification and the drafter's steps, at most: were nothing accepted."""
        width = self.config.decode.width or self.switches.block_size
        context = round(self._mean_context)
        step = Work.of_draft_step(context, self.switches.block_size, new=1)
        draft = forward_flops(self.sizes, self.switches, len(self.taps), step).total
        return self._decoding_flops(width) + self.decoded_tokens * draft

    def _decoding_flops(self, width: int) -> float:
        tokens = self.decoded_tokens * width
        prefill = self.decoded_answers * float(self.evaluation.prompt.mean())
        pairs = tokens * self._mean_context + prefill * self._mean_context / 2
        return target_flops(self.sizes, tokens + prefill, pairs, scored=tokens)

    @property
    def _mean_context(self) -> float:
        return float(self.evaluation.prompt.mean()) + self.config.decode.new_tokens / 2

    def feature_bytes(self, split: Split, dtype: str) -> int:
        """Stored features of every token of a split."""
        lengths = self.train if split == "train" else self.evaluation
        return lengths.tokens * len(self.taps) * self.sizes.hidden * BYTES[dtype]

    @property
    def checkpoint_bytes(self) -> int:
        """The finished drafter, in float32."""
        return 4 * self.parameters


def sequence_work(lengths: Lengths, rule: str, count: int, block_size: int) -> Work:
    """One pass over sequences, as the anchor rule cuts them into blocks.

    Labels outside a draft vocabulary, which are not scored, count as scored.
    """
    context = (lengths.prompt + lengths.answer).astype(float)  # [S]
    known = {
        answer: _blocks_and_labels(int(answer), rule, count, block_size)
        for answer in set(lengths.answer)
    }
    blocks, scored = np.array([known[answer] for answer in lengths.answer]).reshape(-1, 2).T
    slots = blocks * block_size
    return Work(
        context=float(context.sum()),
        slots=float(slots.sum()),
        context_pairs=float((slots * context).sum()),
        block_pairs=float((slots * block_size).sum()),
        scored=float(scored.sum()),
    )


def sequence_blocks(answer: int, rule: str, count: int, block_size: int) -> int:
    """Blocks that the anchor rule puts into a sequence with so many answer tokens."""
    eligible = np.arange(max(0, answer - 1))
    return len(ANCHOR_RULES[rule](eligible, block_size, count, generator_for("plan")))


@lru_cache(maxsize=4096)
def _blocks_and_labels(answer: int, rule: str, count: int, block_size: int) -> tuple[int, float]:
    """Blocks of a sequence, and slots of them with a label, on average over the rule's draws."""
    places = np.arange(max(0, answer - 1))[:: block_size if rule == "uniform" else 1]
    blocks = sequence_blocks(answer, rule, count, block_size)
    labels = np.minimum(block_size - 1, answer - 1 - places)
    return blocks, blocks * float(labels.mean()) if blocks else 0.0
