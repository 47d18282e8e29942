"""The store entries that an experiment needs, each with what it costs to make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dflash.lab.budget import match_planned
from dflash.lab.experiment import Experiment
from dflash.lab.grid import PlannedArm, plan_arms
from dflash.lab.pipeline import cell_keys
from dflash.lab.plan.data import Assumed, Lengths, knows_text, plan_answers_key, planned_lengths
from dflash.lab.plan.target import PlannedTarget, planned_target
from dflash.lab.plan.work import CellWork
from dflash.lab.stages.answers import Split
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import TargetInfo
from dflash.lab.store import Key
from dflash.target import TargetConfig


@dataclass(frozen=True)
class Entry:
    """One entry and its price.

    Attributes:
        stored: finished already, so it costs nothing more.
        flops: operations of target and drafter.
        bytes: on disk when finished; tables and token ids, a fraction of a percent, not counted.
        answered: tokens that the target writes in batches.
        tokens: positions that training reads.
        steps: optimizer steps.
    """

    key: Key
    stored: bool
    flops: float = 0.0
    bytes: int = 0
    answered: float = 0.0
    tokens: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class Plan:
    """An experiment before it runs.

    Attributes:
        target: the control's.
        cells: one per arm, in order.
        entries: all that it needs, in the order of the work; each once.
        known: the store can say what it holds of this experiment.
    """

    experiment: Experiment
    planned: tuple[PlannedArm, ...]
    target: PlannedTarget
    cells: tuple[CellWork, ...]
    entries: tuple[Entry, ...]
    known: bool

    @property
    def missing(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.stored]


def make_plan(lab: Lab, experiment: Experiment, assumed: Assumed | None = None) -> Plan:
    """Everything that can be told about an experiment without loading a target's weights.

    Raises:
        UserError: an arm that cannot run, or a target of which nothing is known.
    """
    assumed = Assumed() if assumed is None else assumed
    targets: dict[TargetConfig, PlannedTarget] = {}

    def describe(lab: Lab, config: TargetConfig) -> TargetInfo:
        if config not in targets:
            targets[config] = planned_target(lab, config)
        return targets[config].info

    if experiment.match:
        experiment = match_planned(lab, experiment, describe)
    planned = plan_arms(lab, experiment, describe)
    lengths: dict[str, Lengths] = {}
    cells = tuple(_cell(lab, item, assumed, lengths) for item in planned)
    entries: dict[str, Entry] = {}
    for item, cell in zip(planned, cells, strict=True):
        for seed in experiment.seeds:
            for entry in _entries(lab, item, cell, seed):
                entries.setdefault(entry.key.name, entry)
    known = all(knows_text(item.arm.config) for item in planned)
    known = known and all(target.stored for target in targets.values())
    target = targets[experiment.config.target]
    return Plan(experiment, tuple(planned), target, cells, tuple(entries.values()), known)


def _cell(lab: Lab, item: PlannedArm, assumed: Assumed, known: dict[str, Lengths]) -> CellWork:
    """An arm's work; ``known`` remembers the lengths that arms share."""
    config = item.arm.config

    def lengths(split: Split) -> Lengths:
        key = plan_answers_key(config, split, item.info.identity)
        if key.name not in known:
            known[key.name] = planned_lengths(lab.store, config, split, key, assumed)
        return known[key.name]

    return CellWork(config, item.info, item.parameters, lengths("train"), lengths("eval"))


def _entries(lab: Lab, item: PlannedArm, cell: CellWork, seed: int) -> Iterator[Entry]:
    splits: Sequence[Split] = ("train", "eval")
    answers: dict[str, Split] = {}  # name of the rollouts -> split
    for key in cell_keys(item.arm.config, item.info, seed, plan_answers_key):
        stored = lab.store.has(key)
        if key.stage == "rollouts":
            answers[key.name] = splits[len(answers)]
        split = answers.get(key.name if key.stage == "rollouts" else key.inputs.get("rollouts", ""))
        yield _priced(key, stored, cell, split)


def _priced(key: Key, stored: bool, cell: CellWork, split: Split | None) -> Entry:
    lengths = cell.train if split == "train" else cell.evaluation
    if key.stage == "rollouts":
        answered = float(lengths.answer.sum())
        return Entry(key, stored, cell.answer_flops(lengths), answered=answered)
    if key.stage == "features":
        assert split is not None
        size = cell.feature_bytes(split, key.config["dtype"])
        return Entry(key, stored, cell.feature_flops(lengths), size)
    if key.stage == "train":
        size, tokens = cell.checkpoint_bytes, cell.train_tokens
        return Entry(key, stored, cell.training_flops, size, tokens=tokens, steps=cell.steps)
    if key.stage == "replay":
        return Entry(key, stored, cell.replay_flops())
    plain = key.stage == "autoregressive"
    return Entry(key, stored, cell.plain_flops() if plain else cell.speculative_flops())
