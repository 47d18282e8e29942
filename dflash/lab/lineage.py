"""What a results folder was made from: its experiment's file, store entries and uncommitted code.

``dflash.lab.folders`` says what lies where. What is planned is named on the machine that starts the
experiment; where cells run elsewhere, some entries get other names, as seconds belong to a device.
So every finished run is written down with the entries that it really used.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from dflash.lab.experiment import Experiment
from dflash.lab.files import write_text
from dflash.lab.folders import ENTRIES, EXPERIMENT, FOLDER, PLAN
from dflash.lab.grid import Outcome, PlannedArm, floor_id_of, run_id_of
from dflash.lab.pipeline import cell_keys, floor_keys
from dflash.lab.provenance import source_tree
from dflash.lab.results import TABLES
from dflash.lab.stages.common import read_json, write_json
from dflash.lab.stages.pace import pace_key
from dflash.lab.stages.target import target_key
from dflash.lab.stages.train import DIFF, Trained
from dflash.lab.store import Key, Store, read_manifest, stage_of
from dflash.target.files import replacing

DERIVED = (
    *(f"{name}.parquet" for name in TABLES),
    "matched.json",
    "summary.md",
    "summary.csv",
    "contrasts.csv",
    "figures",
)
Lineage = dict[str, list[str]]


def begin_results(
    directory: Path, experiment: Experiment, planned: Sequence[PlannedArm], config: str
) -> Lineage:
    """Say what the experiment is and which entries it will use, before it runs.

    Tables and figures of another configuration, or of other code, go first: nobody can then read
    them as results of this one. The store still has what they were made from.

    Args:
        config: what ``config.yaml`` is to say.

    Returns:
        Run -> names of the entries that are planned.
    """
    runs = experiment_keys(experiment, planned)
    names = {run: [key.name for key in keys] for run, keys in runs.items()}
    plan, stated = directory / FOLDER / PLAN, directory / "config.yaml"
    same = plan.is_file() and read_json(plan) == names
    if not (same and stated.is_file() and stated.read_text(encoding="utf-8") == config):
        _remove_derived(directory)
        write_json(directory / FOLDER / ENTRIES, names)
        write_json(plan, names)
    write_text(stated, config)
    write_text(directory / EXPERIMENT, experiment.path.read_text(encoding="utf-8"))
    return names


def _remove_derived(directory: Path) -> None:
    for path in (directory / name for name in DERIVED):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_lineage(
    directory: Path, store: Store, planned: Lineage, outcomes: Iterable[Outcome]
) -> None:
    """Name the entries of every run: those it used where it has ended, else those planned."""
    used = {
        outcome.run_id: _used(store, planned[outcome.run_id], outcome.cell.names().values())
        for outcome in outcomes
        if outcome.cell is not None
    }
    write_json(directory / FOLDER / ENTRIES, planned | used)


def _used(store: Store, planned: Sequence[str], last: Iterable[str]) -> list[str]:
    """Entries of a finished cell with all they were made from; what is no input of them as planned.

    Args:
        last: the cell's own entries.
    """
    found: dict[str, None] = {}

    def follow(name: str) -> None:
        for other in read_manifest(store.root / name)["inputs"].values():
            if other:  # a drafter that reads no features has none of them
                follow(other)
        found[name] = None

    for name in last:
        follow(name)
    stages = set(map(stage_of, found))
    return [*(name for name in planned if stage_of(name) not in stages), *found]


def write_diffs(directory: Path, trained: Iterable[Trained]) -> None:
    """Store every diff that the ``runs`` table names, once."""
    diffs = {source_tree().diff_hash: source_tree().diff}
    for drafter in trained:
        diffs[drafter.facts["diff_hash"]] = (drafter.checkpoint.parent / DIFF).read_bytes()
    for name, diff in diffs.items():
        if name:
            with replacing(directory / FOLDER / f"{name}.diff") as place:
                place.write_bytes(diff)


def experiment_keys(experiment: Experiment, planned: Sequence[PlannedArm]) -> dict[str, list[Key]]:
    """Run -> keys of all entries it uses, in the order in which they are built."""
    control = planned[0]
    runs = {
        run_id_of(item.arm, seed): [
            target_key(item.arm.config.target),
            *cell_keys(item.arm.config, item.info, seed),
        ]
        for item in planned
        for seed in experiment.seeds
    }
    if experiment.match == "wall_time":  # without its measurements the arms would get other steps
        for item in planned[1:]:
            pace = pace_key(control.arm.config, item.arm.config, item.info)
            for seed in experiment.seeds:
                runs[run_id_of(item.arm, seed)].append(pace)
    floors = floor_keys(control.arm.config, control.info)
    return runs | {floor_id_of(name): [key] for name, key in floors.items()}
