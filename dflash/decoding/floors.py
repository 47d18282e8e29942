"""Drafters without a model: what any trained drafter has to beat.

Each proposes blocks for every anchor of a known answer, and the same walk as replay's counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dflash.decoding.rows import Answered, ReplayRow, leading_run, slot_labels
from dflash.model.errors import UserError

__all__ = ["LookupProposer", "Proposer", "UnigramProposer", "replay_floor"]

IntArray = npt.NDArray[np.int64]
NOTHING = -2  # a slot without a proposal: equals neither a token id nor the -1 of a missing label


class Proposer(Protocol):
    """Proposes ``slots`` tokens after each of several anchors of one sequence."""

    def propose(self, sequence: IntArray, anchors: IntArray, slots: int) -> IntArray:
        """Proposals, made from ``sequence[:anchor + 1]`` alone. ``[anchors, slots]``"""
        ...


@dataclass(frozen=True)
class UnigramProposer:
    """Proposes the most frequent training token in every slot."""

    token: int

    @classmethod
    def fit(cls, answers: Iterable[npt.NDArray[np.integer]]) -> UnigramProposer:
        """Count the tokens of the training answers; ties go to the lowest id.

        Raises:
            UserError: there is no token to count.
        """
        counts: IntArray = np.zeros(0, dtype=np.int64)
        for answer in answers:
            found = np.bincount(np.asarray(answer, dtype=np.int64), minlength=counts.size)
            found[: counts.size] += counts
            counts = found
        if not counts.any():
            raise UserError.of("training answers", "(empty)", "at least one token")
        return cls(token=int(counts.argmax()))

    def propose(self, sequence: IntArray, anchors: IntArray, slots: int) -> IntArray:
        """The same token everywhere. ``[anchors, slots]``"""
        del sequence
        return np.full((len(anchors), slots), self.token, dtype=np.int64)


@dataclass(frozen=True)
class LookupProposer:
    """Prompt lookup: finds the longest suffix of the text so far, up to ``longest`` tokens, at an
    earlier place of the same text (the latest such place) and copies what followed there.

    Slots beyond the end of the text so far, and blocks whose anchor never occurred, stay empty.
    """

    longest: int = 3

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise UserError.of("longest", self.longest, "an integer of at least 1")

    def propose(self, sequence: IntArray, anchors: IntArray, slots: int) -> IntArray:
        """Copies from ``sequence[:anchor + 1]``. ``[anchors, slots]``"""
        proposals = np.full((len(anchors), slots), NOTHING, dtype=np.int64)
        for row, anchor in zip(proposals, anchors, strict=True):
            source = self._source(sequence[: anchor + 1])
            if source is not None:
                copied = sequence[source + 1 : anchor + 1][:slots]
                row[: len(copied)] = copied
        return proposals

    def _source(self, text: IntArray) -> int | None:
        """Index before the end at which the longest suffix of ``text`` ended before."""
        candidates = np.flatnonzero(text[:-1] == text[-1])
        if not candidates.size:
            return None
        for back in range(1, min(self.longest, len(text))):
            # An index that would reach before the text's start cannot match any further.
            earlier = candidates[candidates >= back]
            longer = earlier[text[earlier - back] == text[-1 - back]]
            if not longer.size:
                break
            candidates = longer
        return int(candidates[-1])


def replay_floor(
    proposer: Proposer, rollouts: Sequence[Answered], block_size: int
) -> list[ReplayRow]:
    """Replay a model-free proposer over every anchor of every answer.

    Args:
        proposer: makes the proposals.
        rollouts: prompts with the target's answers.
        block_size: B; B−1 tokens are proposed per anchor.

    Raises:
        UserError: ``block_size`` is below 2.
    """
    if block_size < 2:
        raise UserError.of("block_size", block_size, "an integer of at least 2")
    rows = []
    for rollout in rollouts:
        prompt, answer = np.asarray(rollout.prompt_ids), np.asarray(rollout.answer_ids)
        sequence = np.concatenate([prompt, answer]).astype(np.int64)
        anchors = np.arange(len(prompt), len(sequence) - 1)
        labels = slot_labels(answer, block_size - 1)  # [n-1, B-1]
        right = proposer.propose(sequence, anchors, block_size - 1) == labels
        rows.append(
            ReplayRow(
                prompt_id=rollout.prompt_id,
                domain=rollout.domain,
                turn=rollout.turn,
                width=block_size,
                match=leading_run(right),
                answer_length=len(answer),
                right=right,
            )
        )
    return rows
