"""How far blocks survive: per-slot counts and the three curves read off them.

Slot k (1 … B−1) of a block predicts the token k places after its anchor. The *marginal* curve is
P(slot k right); the *conditional* curve is P(slot k right | slots 1…k−1 right); the *survival*
curve is P(slots 1…k right). Correctness inside a block is correlated, so no product of marginals
gives the survival curve (conventions §2).

A block near the end of an answer has no label for its last slots. Such a block is *censored*
there: it leaves the risk set without counting as a failure, which makes the survival curve a
Kaplan-Meier estimate (conventions §2, V4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash.metrics.acceptance import ratio

__all__ = ["MarginalCounter", "SurvivalCounter"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def _same_slots(left: IntArray, right: IntArray) -> None:
    if left.shape != right.shape:
        raise ValueError(f"counters over {left.size} and {right.size} slots do not add")


def _divide(numerator: IntArray, denominator: IntArray) -> FloatArray:
    empty = np.full(numerator.shape, np.nan)
    return np.divide(numerator, denominator, out=empty, where=denominator > 0)


@dataclass(frozen=True)
class SurvivalCounter:
    """Sums over blocks; entry k−1 of each array belongs to slot k.

    Attributes:
        reached: blocks whose slots 1…k−1 were all right and whose slot k has a label. ``[B-1]``
        accepted: those of ``reached`` whose slot k was right too. ``[B-1]``
        censored: blocks whose slots 1…k−1 were all right but whose slot k has no label. ``[B-1]``
        blocks: number of blocks.
    """

    reached: IntArray
    accepted: IntArray
    censored: IntArray
    blocks: int

    @classmethod
    def of(cls, match: IntArray, labels: IntArray, slots: int) -> SurvivalCounter:
        """Count blocks.

        Args:
            match: leading right slots of each block. ``[blocks]``
            labels: leading slots of each block that have a label, ``match <= labels``. ``[blocks]``
            slots: drafted slots of a block, B−1.

        Raises:
            ValueError: a block matches more slots than it has labels for.
        """
        match, labels = np.asarray(match, dtype=np.int64), np.asarray(labels, dtype=np.int64)
        if match.shape != labels.shape or np.any(match > labels):
            raise ValueError("every block needs match <= labels")
        slot = np.arange(1, slots + 1)
        alive = match[:, None] >= slot - 1  # [blocks, slots]
        labelled = labels[:, None] >= slot
        return cls(
            reached=(alive & labelled).sum(0),
            accepted=(match[:, None] >= slot).sum(0),
            censored=(alive & ~labelled).sum(0),
            blocks=int(match.size),
        )

    def __add__(self, other: SurvivalCounter) -> SurvivalCounter:
        _same_slots(self.reached, other.reached)
        return SurvivalCounter(
            self.reached + other.reached,
            self.accepted + other.accepted,
            self.censored + other.censored,
            self.blocks + other.blocks,
        )

    @property
    def conditional(self) -> FloatArray:
        """P(slot k right | slots 1…k−1 right), nan where no block got that far. ``[B-1]``"""
        return _divide(self.accepted, self.reached)

    @property
    def survival(self) -> FloatArray:
        """P(slots 1…k right), the Kaplan-Meier product of ``conditional``. ``[B-1]``

        Once the curve is 0 it stays 0; it is nan from the first slot no block reached otherwise.
        """
        curve: FloatArray = np.multiply.accumulate(self.conditional)
        dead = np.flatnonzero(curve == 0)
        if dead.size:
            curve[dead[0] :] = 0.0
        return curve

    @property
    def expected_length(self) -> float:
        """1 + Σ survival: tokens per step that the curve implies, bonus included."""
        return 1 + float(np.nansum(self.survival))

    @property
    def block_prefix(self) -> float:
        """Mean leading run of right slots per block, bonus excluded; censored runs count as is."""
        return ratio(float(self.accepted.sum()), self.blocks)


@dataclass(frozen=True)
class MarginalCounter:
    """Sums over every labelled slot, whatever happened before it; entry k−1 belongs to slot k."""

    labelled: IntArray
    correct: IntArray

    @classmethod
    def of(cls, correct: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_]) -> MarginalCounter:
        """Count blocks; both ``[blocks, B-1]``, ``correct`` is ignored where not ``valid``."""
        correct, valid = np.asarray(correct, dtype=bool), np.asarray(valid, dtype=bool)
        return cls(labelled=valid.sum(0), correct=(correct & valid).sum(0))

    def __add__(self, other: MarginalCounter) -> MarginalCounter:
        _same_slots(self.labelled, other.labelled)
        return MarginalCounter(self.labelled + other.labelled, self.correct + other.correct)

    @property
    def marginal(self) -> FloatArray:
        """P(slot k right), nan where no block has a label. ``[B-1]``"""
        return _divide(self.correct, self.labelled)

    @property
    def token_accuracy(self) -> float:
        """Share of right slots over all labelled ones: no acceptance length, though used as one."""
        return ratio(float(self.correct.sum()), float(self.labelled.sum()))

    @property
    def marginal_product(self) -> float:
        """Σ_k Π_{j≤k} marginal_j, bonus excluded: the estimate that takes slots for independent."""
        return float(np.nansum(np.cumprod(self.marginal)))
