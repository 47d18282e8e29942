"""One pass of the target for several drafters that read different layers of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dflash.data.features import FeatureSource, OnlineFeatures
from dflash.data.rollouts import Rollout
from dflash.target import Target


class SharedFeatures:
    """Online features at the union of several readers' taps; the latest rows are remembered.

    Readers that ask for the same rows at about the same time cause one forward. Whatever they ask
    for, they get what :class:`OnlineFeatures` gives: memory saves time and decides nothing.

    Args:
        taps: those of every reader.
        kept: rows to remember, the sequences of one optimizer step.
    """

    def __init__(
        self,
        target: Target,
        rollouts: Sequence[Rollout],
        taps: Iterable[Sequence[int]],
        dtype: str,
        kept: int,
    ) -> None:
        self.taps = tuple(sorted({tap for chosen in taps for tap in chosen}))
        self.width = target.hidden_size
        self.row = lru_cache(maxsize=kept)(OnlineFeatures(target, rollouts, self.taps, dtype).row)

    def reader(self, taps: Sequence[int]) -> FeatureSource:
        """The rows as one reader wants them: its own taps, in its own order."""
        return _Reader(self, tuple(self.taps.index(tap) for tap in taps))


@dataclass(frozen=True)
class _Reader:
    shared: SharedFeatures
    places: tuple[int, ...]  # of the reader's taps in the union

    def row(self, index: int) -> Tensor:
        """``[T_i, F*H]`` on the CPU."""
        wide = self.shared.row(index).unflatten(-1, (-1, self.shared.width))  # [T_i, U, H]
        return torch.cat([wide[:, place] for place in self.places], dim=-1)
