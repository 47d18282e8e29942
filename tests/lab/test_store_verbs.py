"""The store's verbs on a real experiment, and why something would be built."""

from __future__ import annotations

import re

import pytest

from dflash.cli import main
from dflash.lab.experiment import load_experiment
from dflash.lab.run import run_experiment
from dflash.lab.stages.common import Code
from dflash.lab.store import read_manifest


@pytest.fixture
def ran(lab, small, small_overrides, tmp_path):
    """A finished experiment with one seed; returns the words of `dflash` that name it."""
    run_experiment(
        lab, load_experiment(small, [*small_overrides, "seeds=[0]"]), tmp_path / "results"
    )
    places = ["--store", str(lab.store.root), "--results", str(tmp_path / "results")]
    return lambda *words: main([*words, *places])


def blocks(text: str) -> dict[str, list[str]]:
    """Stage of an entry that is missing -> the lines that say why."""
    found: dict[str, list[str]] = {}
    stage = ""
    for line in text.splitlines():
        if line.startswith(" "):
            found[stage].append(line.strip())
        else:
            stage = line.split("-")[0]
            found.setdefault(stage, [])
    return found


def test_why_names_the_key_the_input_and_the_module(
    ran, lab, small, small_overrides, capsys, monkeypatch
):
    def why(*extra: str, name: str = small) -> str:
        capsys.readouterr()
        assert ran("store", "why", name, *small_overrides, "seeds=[0]", *extra) == 0
        return capsys.readouterr().out

    assert why() == "17 of 17 entries are stored\n"

    told = blocks(why("train.lr=0.5"))
    assert told["train"][1] == "config train.lr: 0.001 -> 0.5"
    assert re.match(r"drafter: train-\w+ -> train-\w+", told["replay"][1])
    assert told["replay"][2] == "config train.lr: 0.001 -> 0.5"
    assert "features" not in told

    told = blocks(why("drafter.features.taps=[0,2]"))
    assert "config taps: [1, 3] -> [0, 2]" in told["features"]
    assert "as above" in told["replay"]

    text = why("drafter.num_layers=2", name=f"{small}/bare")
    assert "config drafter.num_layers: 1 -> 2" in text
    assert "control-s0" not in text

    text = why("target.dtype=bfloat16")
    assert "config dtype: " in text
    assert "the others are named by what the target's entry says" in text

    honest = Code.modules.func
    name = "dflash.data.features"

    def edited(code: Code) -> dict[str, str]:
        return {module: "edited" if module == name else old for module, old in honest(code).items()}

    monkeypatch.setattr(Code, "modules", property(edited))
    told = blocks(why())
    line = f"code of {name} changed (dflash/data/features.py)"
    assert told["features"][1:] == [line, *told["features"][2:]]
    assert any(item.startswith("features: features-") for item in told["train"])
    assert line in told["train"]
    assert "rollouts" not in told, "they do not read features"
    (entry, *_) = lab.store.entries("features")
    capsys.readouterr()
    assert ran("store", "why", entry.name) == 0
    text = capsys.readouterr().out
    assert "out of date" in text
    assert line in text


def test_why_of_what_is_not_there_is_a_mistake(ran, small, small_overrides, capsys):
    for name in ("train-0123456789abcdef", f"{small}/gone", "no_such"):
        capsys.readouterr()
        assert ran("store", "why", name, *small_overrides) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_verbs_on_a_real_store(ran, lab, small, tmp_path, capsys):
    capsys.readouterr()
    assert ran("store", "list") == 0
    text = capsys.readouterr().out
    assert re.search(r"train-\w+ .* drafter: 1 layers, blocks of 4, 2 steps, seed 0 +mine", text)
    assert "features of layers 1, 3" in text
    assert "answers (train): written 12" in text
    assert f"{len(lab.store.entries())} entries" in text
    assert ran("store", "check", "--deep") == 0
    (entry, *_) = lab.store.entries("train")
    assert ran("store", "why", entry.name) == 0
    assert "whole and up to date" in capsys.readouterr().out
    assert ran("store", "gc", "--yes") == 0
    assert entry.is_dir()
    assert ran("store", "gc", "--yes", "--dry-run") == 2
    assert ran("store", "gc", "--older-than", "long") == 2
    assert ran("store", "log") == 0
    (entry / "train.json").write_text("{}")
    assert ran("store", "check") == 1
    assert ran("store", "check", "--repair") == 1
    assert ran("store", "check") == 0
    (tmp_path / "results" / small / "provenance" / "entries.json").unlink()
    capsys.readouterr()
    assert ran("store", "gc", "--keep", small) == 0
    assert "does not say which entries it used" in capsys.readouterr().out
    assert main(["store", "list", "--store", str(tmp_path / "nowhere")]) == 2


def test_manifests_name_the_modules(ran, lab):
    (entry, *_) = lab.store.entries("features")
    modules = read_manifest(entry)["modules"]
    assert {"dflash.data.features", "dflash.target.load"} <= modules.keys()
    assert "dflash.training.run" not in modules


def test_gc_keeps_an_experiment_whose_match_cannot_be_planned(
    ran, lab, small_overrides, write_experiment, tmp_path, capsys
):
    name = write_experiment("  longer: {drafter.block_size: 6}", "even", "match: tokens\n")
    capsys.readouterr()
    assert ran("store", "gc", "--keep", name) == 2
    text = capsys.readouterr().err
    assert "--keep='even' is not valid; allowed: an experiment that has run" in text
    assert text.count("\n") == 1
    experiment = load_experiment(name, [*small_overrides, "seeds=[0]"])
    run_experiment(lab, experiment, tmp_path / "results")
    stored = lab.store.directories()
    assert ran("store", "gc", "--yes", "--keep", name) == 0
    assert lab.store.directories() == stored
