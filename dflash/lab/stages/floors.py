"""Stage "floor": drafters without a model, replayed over the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dflash.data.rollouts import Rollout
from dflash.decoding.floors import LookupProposer, Proposer, UnigramProposer, replay_floor
from dflash.lab.stages.answers import Answers
from dflash.lab.stages.common import Code, Lab
from dflash.lab.stages.tables import write_replay
from dflash.lab.store import Key

CODE = Code(
    roots=("dflash.lab.stages.floors", "dflash.lab.stages.tables", "dflash.decoding.floors"),
    packages=("dflash.decoding", "dflash.metrics", "dflash.lab.stages.tables"),
)


def _unigram(train: Sequence[Rollout]) -> Proposer:
    return UnigramProposer.fit(rollout.answer_ids for rollout in train)


def _lookup(train: Sequence[Rollout]) -> Proposer:
    del train  # it copies from the text at hand
    return LookupProposer()


FLOORS: dict[str, Callable[[Sequence[Rollout]], Proposer]] = {"unigram": _unigram, "ngram": _lookup}


def floor_key(name: str, width: int, train: str, evaluation: str) -> Key:
    """Key of one floor, from the names of the answers it reads."""
    inputs = {"train": train, "evaluation": evaluation}
    return CODE.key("floor", {"name": name, "width": width}, inputs)


def build_floor(lab: Lab, name: str, width: int, train: Answers, evaluation: Answers) -> Path:
    """Replay one floor at a verification width of ``width`` tokens, anchor included.

    Raises:
        StoreError: damaged entry or no space left.
    """
    key = floor_key(name, width, train.entry.name, evaluation.entry.name)

    def work(directory: Path) -> None:
        proposer = FLOORS[name](train.rollouts())
        write_replay(directory, replay_floor(proposer, evaluation.rollouts(), width), evaluation)

    return lab.store.build(key, work)
