"""How many tokens an experiment reads: counted where the answers are stored, else bounded."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dflash.data.prompts import load_prompts, prompt_versions
from dflash.data.shipped import FOLDER
from dflash.data.wording import set_name
from dflash.lab.config import LabConfig
from dflash.lab.stages.answers import ROLLOUTS, Split, answers_key
from dflash.lab.store import Key, Store
from dflash.model.errors import UserError
from dflash.target.published import hub_answers

Counts = npt.NDArray[np.int64]
HUB = "hub/"


@dataclass(frozen=True)
class Assumed:
    """Mean tokens of a prompt and of an answer, where the user knows better than the bounds."""

    prompt_tokens: int | None = None
    answer_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "answer_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = f"--{name.replace('_', '-')}"
                raise UserError.of(option, value, "an integer of at least 1")


@dataclass(frozen=True)
class Lengths:
    """Tokens of the answers of one split.

    Attributes:
        prompt: ``[answers]`` tokens before each answer.
        answer: ``[answers]`` tokens of each answer.
        sets: prompt set -> answers, one per turn of a conversation.
        source: where the tokens come from, in words.
        counted: they are counted, not assumed.
    """

    prompt: Counts
    answer: Counts
    sets: dict[str, int]
    source: str
    counted: bool

    @property
    def tokens(self) -> int:
        return int(self.prompt.sum() + self.answer.sum())

    def trainable(self, max_length: int) -> Lengths:
        """The sequences that training takes: at least one anchor, not too long."""
        kept = (self.answer >= 2) & (self.prompt + self.answer <= max_length)
        return Lengths(self.prompt[kept], self.answer[kept], self.sets, self.source, self.counted)


def plan_answers_key(config: LabConfig, split: Split, identity: dict[str, str]) -> Key:
    """The key of a split's answers; one that finds nothing where a hub set's text is unknown.

    Raises:
        UserError: a prompt set of this machine that is not there.
    """
    if not knows_text(config):
        data = {"train": config.data.train, "eval": config.data.eval, "split": split}
        return Key("rollouts", data | {"target": identity}, {}, "unknown")
    return answers_key(config, split, identity)


def knows_text(config: LabConfig) -> bool:
    """Whether the text behind every prompt set is known: sets of the hub need the hub."""
    sides = (config.data.train, config.data.eval)
    hub = {name for sets in sides for name in sets if name.startswith(HUB) and sets[name]}
    if not hub:
        return True
    if not hub_answers():
        return False
    try:
        prompt_versions(sorted(hub))
    except UserError:  # a plan goes on without, and says so
        return False
    return True


def planned_lengths(
    store: Store, config: LabConfig, split: Split, key: Key, assumed: Assumed
) -> Lengths:
    """Tokens of one split, from the stored answers or from bounds that are said.

    Raises:
        UserError: a prompt set of this machine that is not there.
    """
    stored = stored_lengths(store.path(key))
    if stored is not None:
        return stored
    data = config.data
    asked = data.train if split == "train" else data.eval
    sets = {name: _answers(name, count, data.seed) for name, count in asked.items() if count}
    budget = data.train_new_tokens if split == "train" else data.eval_new_tokens
    room = config.train.max_length
    answer, answer_source = _answer_tokens(config, budget, assumed)
    answer = min(answer, room - 1) if split == "train" else answer
    prompt, prompt_source = assumed.prompt_tokens, "as stated"
    if prompt is None:
        prompt = max(1, room - answer)
        prompt_source = f"at most: train.max_length={room} less the answer"
    count = sum(sets.values())
    words = f"answers of {answer} tokens ({answer_source}), prompts of {prompt} ({prompt_source})"
    return Lengths(np.full(count, prompt), np.full(count, answer), sets, words, counted=False)


def stored_lengths(entry: Path) -> Lengths | None:
    """Tokens of stored answers, None where there is no such entry."""
    if not entry.is_dir():
        return None
    table = pq.read_table(entry / ROLLOUTS)
    prompt, answer = (
        pc.list_value_length(table[name]).to_numpy().astype(np.int64)
        for name in ("prompt_ids", "answer_ids")
    )
    sets = Counter(set_name(prompt_id) for prompt_id in table["prompt_id"].to_pylist())
    return Lengths(prompt, answer, dict(sets), f"counted in {entry.name}", counted=True)


@functools.cache
def _answers(name: str, count: int, seed: int) -> int:
    """Turns of a set's prompts; sets of the hub are not fetched and count one turn a prompt."""
    if name.startswith(HUB):
        return count
    return sum(len(prompt.turns) for prompt in load_prompts(name, count, seed))


def _answer_tokens(config: LabConfig, budget: int, assumed: Assumed) -> tuple[int, str]:
    if assumed.answer_tokens is not None:
        return assumed.answer_tokens, "as stated"
    shipped = shipped_mean(config.target.name, budget)
    if shipped is not None and config.data.rollouts == "shipped":
        return shipped, "the mean of those the repository carries"
    return budget, "at most: the limit of data.*_new_tokens"


@functools.cache
def shipped_mean(target: str, budget: int) -> int | None:
    """Mean tokens of the answers that the repository carries for a target, cut at ``budget``."""
    entry = resources.files("dflash.data") / FOLDER / f"{target}.parquet"
    if not entry.is_file():
        return None
    with resources.as_file(entry) as path:
        lengths = pc.list_value_length(pq.read_table(path, columns=["answer"])["answer"])
    return round(float(np.minimum(lengths.to_numpy(), budget).mean()))
