"""Match lengths of every anchor of an answer, and what is read off them without any model.

Indices are into the answer: anchor p is answer token p, for p in 0 … n−2 with n the answer's length
(the last token has nothing behind it to predict). Slot k of the block at p predicts token p+k, so
min(B−1, n−1−p) of its slots have a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from dflash.metrics import AcceptanceCounter, MarginalCounter, SurvivalCounter
from dflash.model.errors import UserError

__all__ = ["Answered", "ReplayRow", "labels_of", "leading_run", "slot_labels", "walk"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Answered(Protocol):
    """What replay reads of a rollout: a prompt and the answer the target gave to it."""

    @property
    def prompt_id(self) -> str: ...
    @property
    def domain(self) -> str: ...
    @property
    def turn(self) -> int: ...
    @property
    def prompt_ids(self) -> npt.NDArray[np.integer]: ...
    @property
    def answer_ids(self) -> npt.NDArray[np.integer]: ...


def labels_of(answer_length: int, slots: int) -> IntArray:
    """Number of labelled slots of every anchor. ``[max(answer_length - 1, 0)]``"""
    return np.minimum(slots, np.arange(answer_length - 1, 0, -1)).astype(np.int64)


def slot_labels(answer: npt.NDArray[np.integer], slots: int) -> IntArray:
    """The answer token behind every slot of every anchor, -1 beyond the end. ``[n-1, slots]``"""
    anchors = np.arange(max(len(answer) - 1, 0))
    index = anchors[:, None] + np.arange(1, slots + 1)
    inside = index < len(answer)
    return np.where(inside, answer[np.where(inside, index, 0)], -1).astype(np.int64)


def leading_run(right: BoolArray) -> IntArray:
    """Length of the leading run of right slots. ``[..., slots] -> [...]``"""
    return np.logical_and.accumulate(right, axis=-1).sum(-1)


def walk(
    match: Sequence[int] | IntArray, first_anchor: int = 0, end: int | None = None
) -> list[tuple[int, int]]:
    """The chain of steps that decoding takes through a known answer.

    The token at ``first_anchor`` is already there (it comes from prefill, not from a step); each
    step emits its anchor's match length plus the target's own token, cut at ``end``.

    Args:
        match: match length of every anchor.
        first_anchor: index of the first anchor.
        end: index of the answer's last token; default ``len(match)``.

    Returns:
        (anchor, emitted) per step; the emitted counts sum to ``end - first_anchor``.
    """
    end = len(match) if end is None else end
    steps, anchor = [], first_anchor
    while anchor < end:
        emitted = min(int(match[anchor]) + 1, end - anchor)
        steps.append((anchor, emitted))
        anchor += emitted
    return steps


@dataclass(frozen=True)
class ReplayRow:
    """One answer under one drafter, by replay (design §7).

    Attributes:
        prompt_id, domain, turn: of the rollout.
        width: tokens the target would verify per step, the anchor included.
        match: match length of every anchor, cut at ``width - 1`` and at the answer's end. ``[n-1]``
        answer_length: n.
        right: correctness of every slot, False beyond the end; None where replay looked no further
            than the first wrong slot. ``[n-1, width-1]``
    """

    prompt_id: str
    domain: str
    turn: int
    width: int
    match: IntArray
    answer_length: int
    right: BoolArray | None = None

    @property
    def labels(self) -> IntArray:
        """Labelled slots of every anchor; ``match == labels < width-1`` is censored. ``[n-1]``"""
        return labels_of(self.answer_length, self.width - 1)

    def at_width(self, width: int) -> ReplayRow:
        """The same drafter verified at a narrower width (it still drafts its whole block).

        Raises:
            UserError: ``width`` is below 1 or above the width that was replayed.
        """
        if not 1 <= width <= self.width:
            raise UserError.of("width", width, f"1 to {self.width}")
        right = None if self.right is None else self.right[:, : width - 1]
        return replace(self, width=width, match=np.minimum(self.match, width - 1), right=right)

    def steps(self) -> list[tuple[int, int]]:
        """(anchor, emitted) of every decoding step."""
        return walk(self.match)

    def acceptance_lengths(self) -> list[int]:
        """Tokens emitted by every decoding step; they sum to ``answer_length - 1``."""
        return [emitted for _, emitted in self.steps()]

    def _anchors(self, anchors: Literal["all", "visited"]) -> IntArray:
        if anchors == "visited":
            return np.array([anchor for anchor, _ in self.steps()], dtype=np.int64)
        return np.arange(len(self.match))

    def acceptance(self) -> AcceptanceCounter:
        """Counts of the walk; accepted runs are those known, i.e. cut at the answer's end."""
        steps = self.steps()
        accepted = [int(self.match[anchor]) for anchor, _ in steps]
        return AcceptanceCounter.of_prompt([n for _, n in steps], accepted, self.width)

    def survival(self, anchors: Literal["all", "visited"] = "all") -> SurvivalCounter:
        """Counts per slot, over every anchor or over those the walk steps on."""
        index = self._anchors(anchors)
        return SurvivalCounter.of(self.match[index], self.labels[index], self.width - 1)

    def marginals(self, anchors: Literal["all", "visited"] = "all") -> MarginalCounter:
        """Counts per slot whatever came before it.

        Raises:
            ValueError: replay evaluated reached slots only (``slots="reached"``).
        """
        if self.right is None:
            raise ValueError('marginal counts need replay(..., slots="all")')
        index = self._anchors(anchors)
        valid = self.labels[index, None] >= np.arange(1, self.width)
        return MarginalCounter.of(self.right[index], valid)
