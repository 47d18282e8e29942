"""The order of training sequences: a pure function of (seed, step), so any step can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dflash.data.anchors import generator_for

BUCKET = 8  # steps whose sequences are sorted by length together, to pad little


class StepOrder:
    """Which sequences an optimizer step sees.

    Every epoch is a permutation of all sequences; within buckets of a few steps they are grouped by
    length. The last, incomplete step of an epoch is filled up from the permutation's start.
    """

    def __init__(self, lengths: Sequence[int], sequences: int, seed: int) -> None:
        self.lengths = np.asarray(lengths)
        self.sequences = sequences
        self.seed = seed
        self.steps_per_epoch = -(-len(self.lengths) // sequences)
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def rows(self, step: int) -> list[int]:
        """Indices of the sequences of optimizer step ``step``."""
        epoch, offset = divmod(step, self.steps_per_epoch)
        return [int(row) for row in self._epoch(epoch)[offset]]

    def _make_epoch(self, epoch: int) -> np.ndarray:
        generator = generator_for("order", self.seed, epoch)
        needed = self.steps_per_epoch * self.sequences
        order = np.resize(generator.permutation(len(self.lengths)), needed)  # [steps * sequences]
        bucket = BUCKET * self.sequences
        for start in range(0, needed, bucket):
            part = order[start : start + bucket]
            order[start : start + bucket] = part[np.argsort(self.lengths[part], kind="stable")]
        batches = order.reshape(self.steps_per_epoch, self.sequences)
        return generator.permutation(batches)
