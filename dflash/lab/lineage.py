"""What a results folder was made from: its experiment's file, store entries and uncommitted code.

experiment.yaml              the experiment as it was written
provenance/entries.json      run -> names of the store entries it uses
provenance/<diff_hash>.diff  what the working tree changed, see the columns of ``runs``
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dflash.lab.experiment import Experiment
from dflash.lab.files import write_text
from dflash.lab.folders import ENTRIES, EXPERIMENT, FOLDER
from dflash.lab.grid import PlannedArm, floor_id_of, run_id_of
from dflash.lab.pipeline import cell_keys, floor_keys
from dflash.lab.provenance import source_tree
from dflash.lab.stages.common import write_json
from dflash.lab.stages.pace import pace_key
from dflash.lab.stages.target import target_key
from dflash.lab.stages.train import DIFF, Trained
from dflash.lab.store import Key
from dflash.target.files import replacing


def write_lineage(directory: Path, experiment: Experiment, planned: Sequence[PlannedArm]) -> None:
    """Say what the experiment is and which entries it will use, before it runs."""
    write_text(directory / EXPERIMENT, experiment.path.read_text(encoding="utf-8"))
    runs = experiment_keys(experiment, planned)
    names = {run: [key.name for key in keys] for run, keys in runs.items()}
    write_json(directory / FOLDER / ENTRIES, names)


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
