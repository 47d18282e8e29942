"""Results name the entries they were made from, and never lie beside those of another run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from analysis.load import load
from analysis.report import write_report
from dflash.cli import main
from dflash.lab.executors.choice import choose_executor
from dflash.lab.executors.slots import cell_threads
from dflash.lab.experiment import load_experiment
from dflash.lab.grid import all_keys, plan_arms
from dflash.lab.plan.entries import make_plan
from dflash.lab.run import run_experiment
from dflash.lab.stages.target import target_info
from dflash.lab.upkeep.wanted import wanted_entries
from dflash.model.errors import UserError


@pytest.fixture
def start(lab, small, small_overrides, tmp_path):
    """Run the experiment with one seed; returns its folder."""

    def run(*overrides: str) -> Path:
        experiment = load_experiment(small, [*small_overrides, "seeds=[0]", *overrides])
        return run_experiment(lab, experiment, tmp_path / "results").directory

    return run


@pytest.fixture
def elsewhere(monkeypatch):
    """Cells run on a device that the process which plans them does not have."""

    def described(*given):
        return dataclasses.replace(target_info(*given), device="a GPU")

    monkeypatch.setattr("dflash.lab.executors.job.target_info", described)


def lineage(folder: Path) -> dict[str, list[str]]:
    return json.loads((folder / "provenance" / "entries.json").read_text())


def test_the_lineage_of_cells_that_ran_elsewhere_is_what_they_used(elsewhere, start, lab, tmp_path):
    folder = start()
    stored = {entry.name for entry in lab.store.entries()}
    used = {name for names in lineage(folder).values() for name in names}
    assert used == stored
    stages = [name.rpartition("-")[0] for name in lineage(folder)["bare-s0"]]
    assert len(stages) == len({*stages}) + 2, "rollouts and features of two splits"
    places = ["--store", str(lab.store.root), "--results", str(tmp_path / "results")]
    assert main(["store", "gc", "--yes", *places]) == 0
    assert {entry.name for entry in lab.store.entries()} == stored
    before = lineage(folder), (folder / "runs.parquet").stat().st_ino
    write_report(folder, (), resamples=50)
    start()
    assert lineage(folder) == before[0]
    assert (folder / "summary.md").is_file(), "the same plan keeps what was derived"
    assert main(["store", "export", folder.name, str(tmp_path / "out"), *places]) == 0


def test_in_this_process_the_plan_is_what_is_used(start):
    folder = start()
    plan = json.loads((folder / "provenance" / "plan.json").read_text())
    used = lineage(folder)
    assert {run: sorted(names) for run, names in used.items()} == {
        run: sorted(names) for run, names in plan.items()
    }


def test_a_new_configuration_removes_the_old_results_before_it_runs(
    start, small, tmp_path, monkeypatch, lab
):
    folder = start()
    write_report(folder, ("png",), resamples=50)
    (folder / "notes.txt").write_text("mine")

    def killed(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("dflash.lab.run.outcomes_by_seed", killed)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert load(small, tmp_path / "results").config, "nothing has changed"
    with pytest.raises(KeyboardInterrupt):
        start("train.lr=0.5")
    with pytest.raises(UserError, match="run the experiment first"):
        load(small, tmp_path / "results")
    kept = {path.name for path in folder.iterdir()}
    assert kept == {"config.yaml", "data_card.json", "experiment.yaml", "notes.txt", "provenance"}


def test_tables_of_other_entries_are_not_exported(start, lab, small, tmp_path, capsys):
    folder = start()
    write_report(folder, (), resamples=50)
    names = folder / "provenance" / "entries.json"
    swapped = lineage(folder)
    swapped["bare-s0"], swapped["leaky-s0"] = swapped["leaky-s0"], swapped["bare-s0"]
    names.write_text(json.dumps(swapped))
    places = ["--store", str(lab.store.root), "--results", str(tmp_path / "results")]
    capsys.readouterr()
    assert main(["store", "export", small, str(tmp_path / "out"), *places]) == 2
    text = capsys.readouterr().err
    assert "bare-s0 is of train-" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ((), 4),
        (("executor.workers=1",), 4),
        (("executor.workers=2",), 3),
        (("executor.kind=ray",), 1),
        (("executor.kind=slurm", "executor.slurm.cpus=2"), 2),
        (("executor.kind=slurm",), 4),
    ],
)
def test_every_verb_names_the_threads_of_the_cells(
    options, threads, lab, small, small_overrides, monkeypatch
):
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    monkeypatch.setattr("dflash.lab.executors.slots.cores_here", lambda: 6)
    experiment = load_experiment(small, [*small_overrides, *options])
    if "kind" not in str(options):
        choose_executor(lab, experiment.config)
    planned = plan_arms(lab, experiment)
    assert {item.info.device.rpartition("x")[2] for item in planned} == {str(threads)}
    keys = all_keys(experiment, planned).keys()
    assert keys <= wanted_entries(lab, experiment).keys()
    decoded = {item.info.device for item in make_plan(lab, experiment).planned}
    assert decoded == {item.info.device for item in planned}
    assert (cell_threads(experiment.config.executor) or torch.get_num_threads()) == threads
