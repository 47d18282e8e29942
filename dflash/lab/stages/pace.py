"""Stage "pace": seconds per training step of an arm and the control, measured in turn.

The figures decide how many steps an arm gets under ``match: wall_time``. They belong to one machine
and are stored, so that the number of steps stays what it was.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from dflash.lab.config import LabConfig
from dflash.lab.stages.answers import Answers, answers_key, build_answers
from dflash.lab.stages.common import Code, Lab, read_json, write_json
from dflash.lab.stages.features import build_split_features, features_key
from dflash.lab.stages.target import TargetInfo
from dflash.lab.stages.train import feature_source, train_key
from dflash.lab.store import Key

CODE = Code(
    roots=("dflash.lab.stages.pace", "dflash.training.run"),
    packages=("dflash.training", "dflash.data", "dflash.target", "dflash.model"),
    watchers=("dflash.training.trackers",),
)
PACE = "pace.json"
STEPS = 24
TURNS = ("control", "arm", "arm", "control")  # drift of the machine's speed cancels
WARM_UP = ("control", "arm")


def pace_key(control: LabConfig, arm: LabConfig, info: TargetInfo) -> Key:
    """Key of one measurement; how long the arms train otherwise does not matter to it."""
    parts: dict[str, Any] = {"device": info.device, "steps": STEPS}
    inputs: dict[str, str] = {}
    for name, config in (("control", control), ("arm", arm)):
        rollouts = answers_key(config, "train", info.identity).name
        features = features_key(config, "train", info, rollouts)
        read = None if features is None else features.name
        key = train_key(_short(config), 0, info.identity, rollouts, read)
        parts[name] = key.config
        inputs |= {f"{name} {role}": entry for role, entry in key.inputs.items()}
    return CODE.key("pace", parts, inputs)


def _short(config: LabConfig) -> LabConfig:
    """The same, for as many steps as are measured."""
    train = dataclasses.replace(
        config.train, steps=STEPS, logger="csv", checkpoint_every=STEPS + 1, seed_shift=0, replica=0
    )
    return dataclasses.replace(config, train=train)


def build_pace(lab: Lab, control: LabConfig, arm: LabConfig, info: TargetInfo) -> dict[str, float]:
    """Seconds per step, ``control`` and ``arm``; measured, or found as measured.

    Raises:
        UserError: a configuration that cannot be trained.
        StoreError: damaged entry or no space left.
    """
    configs = {"control": control, "arm": arm}
    answers = {name: build_answers(lab, c, "train", info.identity) for name, c in configs.items()}

    def work(directory: Path) -> None:
        lab.say("measuring the pace of training, in turn with the control")
        seconds: dict[str, float] = dict.fromkeys(configs, 0.0)
        for name in WARM_UP:
            _train(lab, configs[name], info, answers[name], directory)
        for name in TURNS:
            seconds[name] += _train(lab, configs[name], info, answers[name], directory)
        steps = STEPS * len(TURNS) / len(configs)
        write_json(directory / PACE, {name: total / steps for name, total in seconds.items()})

    entry = lab.store.build(pace_key(control, arm, info), work)
    return dict(read_json(entry / PACE))


def _train(
    lab: Lab, config: LabConfig, info: TargetInfo, answers: Answers, directory: Path
) -> float:
    """Seconds of a short training run that leaves nothing."""
    from dflash.training.run import train_drafter  # Lightning takes seconds to import

    target = lab.target(config.target)
    features = build_split_features(lab, config, "train", info, answers)
    scratch = directory / ".run"
    shutil.rmtree(scratch, ignore_errors=True)
    result = train_drafter(
        _short(config).train,
        config.drafter,
        target,
        answers.rollouts(),
        feature_source(config, target, answers, features),
        0,
        scratch,
        progress=False,
    )
    shutil.rmtree(scratch)
    return result.train_seconds
