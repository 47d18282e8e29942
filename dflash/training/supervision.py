"""How much a run learns from, counted without training it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dflash.data.rollouts import Rollout
from dflash.model.switches import DrafterSwitches, argument_of
from dflash.training.config import TrainConfig, total_steps
from dflash.training.datamodule import StepBatches
from dflash.training.losses import IGNORED
from dflash.training.run import frequent_tokens, trainable_rows


def supervised_slots(
    config: TrainConfig,
    switches: DrafterSwitches,
    rollouts: Sequence[Rollout],
    vocab_size: int,
    seed: int,
) -> Callable[[int], int]:
    """How many slots an optimizer step supervises, as a function of the step.

    Counts what training counts: labels inside the answer and inside the draft vocabulary.
    """
    kept = [rollouts[row] for row in trainable_rows(rollouts, config.max_length)]
    batches = StepBatches(
        kept,
        None,
        config,
        switches.block_size,
        seed + config.seed_shift,
        total_steps(config, len(kept)),
    )
    known = np.ones(vocab_size, dtype=bool)
    if switches.vocab != "full":
        known[:] = False
        known[frequent_tokens(rollouts, argument_of(switches.vocab), vocab_size)] = True

    def slots(step: int) -> int:
        labels = torch.cat([part.labels.flatten() for part in batches[step]]).numpy()
        return int(known[labels[labels != IGNORED]].sum())

    return slots
