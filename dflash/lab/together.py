"""Arms that train in one process from one pass over the target's features.

With ``data.mode=online`` every training step runs the target. Arms of a seed see the same sequences
at the same steps, so one forward can serve them all. The entries they leave in the store are those
they would have left alone, under the same keys.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dflash.lab.executors.choice import Executor
from dflash.lab.executors.in_turn import InTurn
from dflash.lab.experiment import Experiment
from dflash.lab.grid import PlannedArm
from dflash.lab.pipeline import prepare_training
from dflash.lab.stages.common import Lab
from dflash.lab.stages.train import Training, shared_sources
from dflash.lab.store import StoreError
from dflash.model.errors import UserError
from dflash.training.lockstep import run_in_lockstep


def check_together(experiment: Experiment, executor: Executor) -> None:
    """Refuse what has nothing to share, and what cannot take turns.

    Raises:
        UserError: cells would run outside this process, no arm reads features online, or an arm
            trains on several devices.
    """
    if not isinstance(executor, InTurn):
        raise UserError(
            "--together trains in this process: it needs executor.kind=local, executor.workers=1 "
            "and, where there are several GPUs, a certain one, as target.device=cuda:0"
        )
    configs = [arm.config for arm in experiment.arms]
    if not any(config.data.mode == "online" for config in configs):
        raise UserError.of("data.mode", "offline", "online with --together")
    for config in configs:
        if config.train.ranks > 1:
            raise UserError.of("train.devices", config.train.devices, "1, on one node, together")


def train_together(lab: Lab, planned: Sequence[PlannedArm], seed: int) -> None:
    """Bring the drafters of one seed into the store as far as they can share the target's pass.

    An arm that fails leaves the others alone. Its cell then goes on with it by itself, with all the
    memory there is, and reports the error if it fails there too. Cells that another process works
    on are left to it, and those that train here are claimed, so that it works on others.
    """
    groups: dict[object, dict[str, Training]] = defaultdict(dict)
    for item in planned:
        config = item.arm.config
        if config.data.mode == "online" and config.drafter.kv.fusion != "none":
            training = _prepared(lab, item, seed)
            if training is not None and not lab.store.has(training.key):
                answers = training.answers.entry
                shared = (config.target, answers, config.data.feature_dtype)
                groups[shared][training.key.name] = training
    for group in groups.values():
        with contextlib.ExitStack() as claims:
            ours = [name for name in sorted(group) if _claimed(lab, name, claims)]
            if len(ours) > 1:
                lab.say(f"seed {seed}: {len(ours)} drafters train together")
                _Together(lab, {name: group[name] for name in ours}).build(ours)


def _claimed(lab: Lab, name: str, claims: contextlib.ExitStack) -> bool:
    """Take a cell's claim, unless another process has it."""
    claim = lab.store.claim(name)
    if claim is not None:
        claims.enter_context(claim)
    return claim is not None


def _prepared(lab: Lab, item: PlannedArm, seed: int) -> Training | None:
    """An arm's training, or None when it cannot begin: its cell finds out why and reports it."""
    try:
        return prepare_training(lab, item.arm.config, item.info, seed)
    except StoreError:
        raise
    except Exception as error:
        lab.say(f"{item.arm.name}, seed {seed} does not train together with others: {error!r}")
        return None


@dataclass
class _Together:
    """Runs that share one pass, by the names of their entries."""

    lab: Lab
    trainings: dict[str, Training]
    directories: dict[str, Path] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)

    def build(self, waiting: Sequence[str]) -> None:
        """Open the entries one inside the other, so that all are locked at once, then train.

        Every process opens them in the order of their names, so none waits in a circle.
        """
        if not waiting:
            self._train()
            return
        name, *rest = waiting

        def work(directory: Path) -> None:
            self.directories[name] = directory
            self.build(rest)
            if name in self.errors:
                raise self.errors[name]

        try:
            self.lab.store.build(self.trainings[name].key, work)
        except Exception as error:
            if error is not self.errors.get(name):
                raise
            self.lab.say(f"{name} left the common training: {error!r}")
        if name not in self.directories:  # another process finished it while we waited
            self.build(rest)

    def _train(self) -> None:
        """Take turns until every run has ended, one way or the other."""
        if not self.directories:
            return
        first, *others = (self.trainings[name] for name in self.directories)
        quiet = replace(self.lab, progress=False)  # one bar is enough: they keep step
        # the same answers, in memory once
        others = [replace(item, lab=quiet, answers=first.answers) for item in others]
        trainings = [first, *others]
        sources = shared_sources(trainings)
        runs = [
            partial(training.fill, directory, source)
            for training, directory, source in zip(
                trainings, self.directories.values(), sources, strict=True
            )
        ]
        ended = zip(self.directories, run_in_lockstep(runs), strict=True)
        self.errors = {name: error for name, error in ended if error is not None}
