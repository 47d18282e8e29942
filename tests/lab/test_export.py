"""An exported experiment is whole, checkable and readable where there is no store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from analysis.load import load
from analysis.report import write_report
from dflash.cli import main
from dflash.data.rollouts import read_rollouts
from dflash.lab.bundle import MANIFEST, faults
from dflash.lab.experiment import load_experiment
from dflash.lab.run import run_experiment
from dflash.model import DFlashDraftModel

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def ran(lab, small, small_overrides, tmp_path):
    """A finished and reported experiment; returns ``dflash`` on its store and results."""
    experiment = load_experiment(small, [*small_overrides, "seeds=[0]"])
    write_report(run_experiment(lab, experiment, tmp_path / "results").directory, resamples=50)
    places = ["--store", str(lab.store.root), "--results", str(tmp_path / "results")]
    return lambda *words: main([*map(str, words), *places])


def test_an_export_needs_neither_store_nor_results(ran, lab, small, tmp_path, capsys):
    target = tmp_path / "out" / "bundle"
    before = load(small, tmp_path / "results")
    weights = DFlashDraftModel.from_pretrained(
        lab.store.root / before.runs.set_index("run_id").loc["bare-s0", "entry"] / "drafter"
    ).state_dict()
    assert ran("store", "export", small, target) == 0
    assert list(target.parent.iterdir()) == [target]
    shutil.rmtree(lab.store.root)
    shutil.rmtree(tmp_path / "results")
    moved = target.rename(tmp_path / "elsewhere")

    assert list(faults(moved)) == []
    assert main(["store", "verify", str(moved)]) == 0
    subprocess.run(["sha256sum", "--check", "--quiet", MANIFEST], cwd=moved, check=True)
    result = load("elsewhere", tmp_path)
    for name in ("runs", "prompts", "steps", "survival"):
        pd.testing.assert_frame_equal(getattr(result, name), getattr(before, name))
    assert result.config == before.config
    for run in ("control-s0", "bare-s0", "leaky-s0"):
        loaded = DFlashDraftModel.from_pretrained(moved / "checkpoints" / run)
    assert loaded.switches.attention.leak == 1
    again = DFlashDraftModel.from_pretrained(moved / "checkpoints" / "bare-s0").state_dict()
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    files = moved.glob("rollouts/*/rollouts.parquet")
    answers = {path.parent.name: len(read_rollouts(path)) for path in files}
    assert sorted(answers.values()) == [3, 13], "one conversation has two turns"

    entries = json.loads((moved / "provenance" / "entries.json").read_text())
    told = {path.stem for path in (moved / "provenance" / "entries").iterdir()}
    assert told == {name for names in entries.values() for name in names}
    text = (moved / "README.md").read_text()
    assert "| control-s0 | ok | `checkpoints/control-s0` | rollouts-" in text
    for name in answers:
        assert name in text
    for name in ("summary.md", "summary.csv", "experiment.yaml", "config.yaml", "data_card.json"):
        assert (moved / name).is_file()
        assert f"`{name}`" in text
    assert list((moved / "figures").iterdir())
    assert str(tmp_path) not in text


def test_verify_reports_every_fault(ran, small, tmp_path, capsys):
    target = tmp_path / "bundle"
    assert ran("store", "export", small, target, "--without-checkpoints") == 0
    assert not (target / "checkpoints").exists()
    assert "left out" in (target / "README.md").read_text()
    (target / "summary.md").unlink()
    (target / "config.yaml").write_text("changed")
    (target / "extra").write_text("")
    capsys.readouterr()
    assert main(["store", "verify", str(target)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        "config.yaml has changed",
        "extra is not listed",
        "summary.md is missing",
    ]
    assert last.startswith("3 faults, ")
    (target / MANIFEST).write_text("nonsense\n")
    assert main(["store", "verify", str(target)]) == 2
    (target / MANIFEST).unlink()
    assert main(["store", "verify", str(target)]) == 2


def test_verify_is_light(tmp_path):
    code = "import sys; from dflash.cli import main; main(['store', 'verify', sys.argv[1]])\n"
    code += "assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment)


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(ran, lab, small, tmp_path, capsys):
    folder = tmp_path / "results" / small
    target = tmp_path / "out" / "bundle"

    def refused(message: str, name: str = small) -> None:
        capsys.readouterr()
        assert ran("store", "export", name, target) == 2
        text = capsys.readouterr().err
        assert message in text
        assert text.count("\n") == 1
        assert not target.parent.exists() or list(target.parent.iterdir()) == []

    refused("EXPERIMENT='gone'", "gone")
    (folder / "summary.md").rename(folder / "kept.md")
    refused("has no summary.md")
    (folder / "kept.md").rename(folder / "summary.md")

    names = folder / "provenance" / "entries.json"
    entries = json.loads(names.read_text())
    names.write_text(json.dumps(entries | {"bare-s1": []}))
    refused("bare-s1 is missing")
    names.write_text(json.dumps(entries))

    (entry, *_) = lab.store.entries("train")
    weights = next((entry / "drafter").glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    refused(f"{weights.name} has")
    weights.write_bytes(content)

    target.mkdir(parents=True)
    assert ran("store", "export", small, target) == 2
    assert "a folder that does not exist" in capsys.readouterr().err
    assert list(target.iterdir()) == []


def test_a_failed_run_is_exported_as_such(ran, lab, small, small_overrides, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("broke")

    monkeypatch.setattr("dflash.training.run.train_drafter", broken)
    overrides = [*small_overrides, "seeds=[0]", "drafter.num_layers=2"]
    finished = run_experiment(lab, load_experiment(small, overrides), tmp_path / "results")
    assert len(finished.failed) == 3
    write_report(finished.directory, (), resamples=50)
    assert ran("store", "export", small, tmp_path / "bundle") == 0
    assert "| bare-s0 | failed |  |" in (tmp_path / "bundle" / "README.md").read_text()
    assert list(faults(tmp_path / "bundle")) == []
