"""Arms by seeds: what is planned, what is stored, what came out (pitfalls T-GRID1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash.lab.config import LabConfig
from dflash.lab.executors.slots import cell_threads
from dflash.lab.experiment import Arm, Experiment
from dflash.lab.invariants import broken
from dflash.lab.pipeline import Cell, cell_keys, check_cell
from dflash.lab.provenance import device_name, machine_facts, package_versions, source_tree
from dflash.lab.results import Row
from dflash.lab.stages.common import Lab
from dflash.lab.stages.decode import CODE as DECODE_CODE
from dflash.lab.stages.floors import CODE as FLOOR_CODE
from dflash.lab.stages.replay import CODE as REPLAY_CODE
from dflash.lab.stages.tables import EVALUATION_TABLES, read_evaluation
from dflash.lab.stages.target import TargetInfo, target_info
from dflash.lab.stages.train import CODE as TRAIN_CODE
from dflash.lab.store import Key
from dflash.model.errors import UserError
from dflash.target import TargetConfig
from dflash.target.load import device_of

Describe = Callable[[Lab, TargetConfig], TargetInfo]
NAN = float("nan")
HASHES = ("order_hash", "anchor_hash", "feature_hash", "init_hash")
# Told by the run that trained, which may have been on another machine, by another commit.
COUNTS = ("parameters", "steps", "tokens", "train_seconds", "final_loss")
ORIGIN = ("device", "commit", "diff_hash")


@dataclass(frozen=True)
class PlannedArm:
    """An arm whose drafter was built without memory, so that it is known to be possible."""

    arm: Arm
    info: TargetInfo
    parameters: int


@dataclass(frozen=True)
class Outcome:
    """A cell that ran, or the one-line reason why it did not."""

    planned: PlannedArm
    seed: int
    cell: Cell | None
    error: str = ""

    @property
    def run_id(self) -> str:
        return run_id_of(self.planned.arm, self.seed)


def run_id_of(arm: Arm, seed: int) -> str:
    """What joins the tables of one cell."""
    return f"{arm.name}-s{seed}"


def floor_id_of(name: str) -> str:
    """What joins the tables of one floor."""
    return f"floor-{name}"


def plan_arm(lab: Lab, arm: Arm, describe: Describe = target_info) -> PlannedArm:
    """Check one arm against its target.

    Args:
        describe: what is known of a target; the default loads one that the store does not hold.

    Raises:
        UserError: it cannot run.
    """
    info = where_cells_run(describe(lab, arm.config.target), arm.config)
    return PlannedArm(arm, info, check_cell(arm.config, info))


def plan_arms(
    lab: Lab, experiment: Experiment, describe: Describe = target_info
) -> list[PlannedArm]:
    """Check every arm.

    Raises:
        UserError: an arm that cannot run, or that breaks an invariant, named.
    """
    planned = [plan_arm(lab, arm, describe) for arm in experiment.arms]
    control = {"parameters": planned[0].parameters}
    for item in planned:
        own = {"parameters": item.parameters}
        if fault := broken(experiment.invariants, item.arm.name, control, own):
            raise UserError(fault)
    return planned


def where_cells_run(info: TargetInfo, config: LabConfig) -> TargetInfo:
    """A target as the processes see it that run cells, which may have fewer threads than this."""
    device = device_of(config.target.device)
    threads = cell_threads(config.executor) if device.type == "cpu" else None
    return info if threads is None else replace(info, device=device_name(str(device), threads))


def plan_text(lab: Lab, experiment: Experiment, planned: Sequence[PlannedArm]) -> str:
    """The plan in words: question, arms with their differences, and what is stored already."""
    config = experiment.config
    lines = [
        f"{experiment.name}: {experiment.question}",
        f"  target {config.target.name}, recipe {config.recipe}, tier {config.tier}, "
        f"seeds {', '.join(map(str, experiment.seeds))}",
    ]
    for item in planned:
        mark = " INVALID (negative control)" if item.arm.invalid else ""
        lines.append(f"  {item.arm.name}{mark}: {item.parameters / 1e6:.2f}M parameters")
        lines += diff_lines(item.arm)
    return "\n".join([*lines, f"  {work_text(lab, all_keys(experiment, planned))}"])


def diff_lines(arm: Arm) -> list[str]:
    """What an arm changes, one resolved name a line."""
    return [
        f"      {name}: {_short(before)} -> {_short(after)}"
        for name, (before, after) in arm.diff.items()
    ]


def all_keys(experiment: Experiment, planned: Sequence[PlannedArm]) -> dict[str, Key]:
    """Every entry that the experiment needs, by name, once however often it is used."""
    return {
        key.name: key
        for item in planned
        for seed in experiment.seeds
        for key in cell_keys(item.arm.config, item.info, seed)
    }


def work_text(lab: Lab, keys: Mapping[str, Key]) -> str:
    """How many of these entries are missing from the store, by stage."""
    missing = Counter(key.stage for key in keys.values() if not lab.store.has(key))
    todo = ", ".join(f"{count} {stage}" for stage, count in missing.items()) or "nothing"
    return f"to do: {todo}; {len(keys) - missing.total()} of {len(keys)} entries are stored"


def _short(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


def result_tables(
    experiment: Experiment, outcomes: Sequence[Outcome], floors: dict[str, Path]
) -> dict[str, list[Row]]:
    """The four long tables, from the store's entries alone; floors last."""
    tables: dict[str, list[Row]] = {name: [] for name in ("runs", *EVALUATION_TABLES)}
    order = {arm.name: index for index, arm in enumerate(experiment.arms)}
    for outcome in sorted(outcomes, key=lambda o: (order[o.planned.arm.name], o.seed)):
        tables["runs"].append(_run_row(experiment, outcome))
        if outcome.cell is not None:
            _extend(tables, [outcome.cell.replay, outcome.cell.decode], outcome.run_id)
    control = outcomes[0].planned
    for name, entry in floors.items():
        run_id = floor_id_of(name)
        tables["runs"].append(_floor_row(experiment, control, name, run_id))
        _extend(tables, [entry], run_id)
    return tables


def _extend(tables: dict[str, list[Row]], entries: Sequence[Path | None], run_id: str) -> None:
    for entry in entries:
        if entry is not None:
            for name, rows in read_evaluation(entry, run_id).items():
                tables[name] += rows


def _common_row(experiment: Experiment, planned: PlannedArm, run_id: str) -> Row:
    """Columns of a run in which nothing was trained."""
    return {
        "experiment": experiment.name,
        "run_id": run_id,
        "invalid": False,
        "config_diff": "{}",
        "levels": "{}",
        "parameters": 0,
        "steps": 0,
        "tokens": 0,
        "train_seconds": NAN,
        "final_loss": NAN,
        **dict.fromkeys(HASHES, ""),
        "moved": "{}",
        "device": planned.info.device,
        "dtype": planned.arm.config.target.dtype,
        "target": planned.arm.config.target.name,
        "template_hash": planned.info.template_hash,
        "machine": json.dumps(machine_facts(), sort_keys=True),
        "packages": json.dumps(package_versions(), sort_keys=True),
        "commit": source_tree().commit,
        "diff_hash": source_tree().diff_hash,
        "entry": "",
        "status": "ok",
        "error": "",
    }


def _run_row(experiment: Experiment, outcome: Outcome) -> Row:
    arm = outcome.planned.arm
    row = _common_row(experiment, outcome.planned, outcome.run_id) | {
        "arm": arm.name,
        "seed": outcome.seed,
        "control": arm.control,
        "invalid": arm.invalid,
        "kind": "drafter",
        "config_diff": json.dumps({name: list(pair) for name, pair in arm.diff.items()}),
        "levels": json.dumps(arm.levels),
        "parameters": outcome.planned.parameters,
        "code_version": f"train:{TRAIN_CODE.version} replay:{REPLAY_CODE.version} "
        f"decode:{DECODE_CODE.version}",
    }
    if outcome.cell is None:
        return row | {"status": "failed", "error": outcome.error}
    facts = outcome.cell.trained.facts
    told = {name: facts[name] for name in (*COUNTS, *HASHES, *ORIGIN)}
    objects = ("moved", "machine", "packages")
    words = {name: json.dumps(facts[name], sort_keys=True) for name in objects}
    return row | told | words | {"entry": outcome.cell.trained.name}


def _floor_row(experiment: Experiment, control: PlannedArm, name: str, run_id: str) -> Row:
    return _common_row(experiment, control, run_id) | {
        "arm": f"floor:{name}",
        "seed": -1,
        "control": False,
        "kind": "floor",
        "code_version": f"floor:{FLOOR_CODE.version}",
    }
