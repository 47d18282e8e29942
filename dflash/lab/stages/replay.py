"""Stage "replay": acceptance of one trained drafter over the target's answers (design §7)."""

from __future__ import annotations

from pathlib import Path

from dflash.decoding.replay import replay
from dflash.lab.config import LabConfig
from dflash.lab.stages.answers import Answers
from dflash.lab.stages.common import Code, Lab
from dflash.lab.stages.features import Features
from dflash.lab.stages.tables import write_replay
from dflash.lab.stages.train import Trained
from dflash.lab.store import Key

CODE = Code(
    roots=("dflash.lab.stages.replay", "dflash.lab.stages.tables", "dflash.decoding.replay"),
    packages=(
        "dflash.decoding",
        "dflash.metrics",
        "dflash.model",
        "dflash.target",
        "dflash.lab.stages.tables",
    ),
)


def replay_key(config: LabConfig, drafter: str, evaluation: str, features: str | None) -> Key:
    """Key of one drafter's replay, from the names of the entries it reads."""
    inputs = {"drafter": drafter, "evaluation": evaluation, "features": features or ""}
    return CODE.key("replay", {"width": config.decode.width}, inputs)


def build_replay(
    lab: Lab, config: LabConfig, trained: Trained, evaluation: Answers, features: Features | None
) -> Path:
    """Tables ``prompts``, ``steps`` and ``survival`` of one drafter.

    Raises:
        StoreError: damaged entry or no space left.
    """
    name = None if features is None else features.entry.name
    key = replay_key(config, trained.name, evaluation.entry.name, name)

    def work(directory: Path) -> None:
        target = lab.target(config.target)
        rows = replay(
            trained.load(target),
            target,
            evaluation.rollouts(),
            None if features is None else features.open(),
            width=config.decode.width,
            slots="all",  # for the marginal curve
        )
        write_replay(directory, rows, evaluation)

    return lab.store.build(key, work)
