"""Keep training prompts apart from evaluation prompts.

Two rules, both on lower-case words without punctuation and without the frame that wordings add:

* a training prompt *overlaps* if one of its turns shares n consecutive words with a turn of an
  evaluation prompt, or equals such a turn (which catches turns shorter than n words);
* a training prompt is a *duplicate* if an earlier training prompt has the same turns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dflash.data.wording import Prompt, bare_text
from dflash.model.errors import UserError

Words = tuple[str, ...]

_WORD = re.compile(r"\w+")


@dataclass
class SetOverlap:
    """Counts of one training set; ``kept + overlapping + duplicates == prompts``."""

    prompts: int = 0
    overlapping: int = 0
    duplicates: int = 0

    @property
    def kept(self) -> int:
        return self.prompts - self.overlapping - self.duplicates


@dataclass
class OverlapReport:
    """What was dropped and why.

    Attributes:
        n: words in a row that count as overlap.
        sets: training set -> counts.
        overlapping: training prompt id -> id of the evaluation prompt that it overlaps.
        duplicates: training prompt id -> id of the earlier training prompt that it repeats.
    """

    n: int
    sets: dict[str, SetOverlap] = field(default_factory=dict)
    overlapping: dict[str, str] = field(default_factory=dict)
    duplicates: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with ``kept`` spelt out per set."""
        data = asdict(self)
        for name, counts in self.sets.items():
            data["sets"][name]["kept"] = counts.kept
        return data


def drop_overlap(
    train: Sequence[Prompt], evaluation: Sequence[Prompt], n: int = 8
) -> tuple[list[Prompt], OverlapReport]:
    """Training prompts, in order, that neither overlap with evaluation nor repeat each other.

    Raises:
        UserError: ``n`` below 1, or two training prompts with one id.
    """
    if n < 1:
        raise UserError.of("n", n, "a positive number of words")
    seen_in_evaluation: dict[Words, str] = {}
    for prompt in evaluation:
        for gram in _grams(prompt, n):
            seen_in_evaluation.setdefault(gram, prompt.prompt_id)

    report = OverlapReport(n)
    kept: list[Prompt] = []
    first_with: dict[tuple[Words, ...], str] = {}
    ids: set[str] = set()
    for prompt in train:
        if prompt.prompt_id in ids:
            raise UserError(f"two training prompts have the id {prompt.prompt_id!r}")
        ids.add(prompt.prompt_id)
        counts = report.sets.setdefault(prompt.set_name, SetOverlap())
        counts.prompts += 1
        match = next(
            (seen_in_evaluation[g] for g in _grams(prompt, n) if g in seen_in_evaluation), None
        )
        earlier = first_with.setdefault(_turns(prompt), prompt.prompt_id)
        if match is not None:
            counts.overlapping += 1
            report.overlapping[prompt.prompt_id] = match
        elif earlier != prompt.prompt_id:
            counts.duplicates += 1
            report.duplicates[prompt.prompt_id] = earlier
        else:
            kept.append(prompt)
    return kept, report


def _turns(prompt: Prompt) -> tuple[Words, ...]:
    return tuple(tuple(_WORD.findall(bare_text(turn).lower())) for turn in prompt.turns)


def _grams(prompt: Prompt, n: int) -> Iterator[Words]:
    """Every run of n words of every turn, and every whole turn that is shorter."""
    for words in _turns(prompt):
        if 0 < len(words) < n:
            yield words
        for start in range(len(words) - n + 1):
            yield words[start : start + n]
