"""An experiment of twelve cells, started by this process or as a command."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash.lab.experiment import load_experiment
from dflash.lab.run import run_experiment
from dflash.lab.stages.common import Lab
from dflash.lab.store import Store
from tests.lab.conftest import SHIPPED, SMALL, tiny
from tests.lab.executors.grid import MORE, SEEDS, TWELVE, command, tables

SLOW = ("dflash.training.run", "dflash.decoding", "analysis.report")


@pytest.fixture(scope="session")
def shelf(tmp_path_factory, tiny_target) -> Path:
    """The shipped experiments, ``twelve`` and ``more``, which has one arm more."""
    directory = tmp_path_factory.mktemp("shelf") / "experiments"
    shutil.copytree(SHIPPED, directory)
    target = {"name": "tiny", "source": str(tiny_target), "mask_token_id": tiny.MASK}
    (directory / "target" / "tiny.yaml").write_text(yaml.safe_dump(target | {"device": "cpu"}))
    for name, arms in (("twelve", TWELVE), ("more", MORE)):
        text = f"question: q?\nhypothesis: h\npaper: p\narms:\n{arms}\n"
        (directory / "ablation" / f"{name}.yaml").write_text(text)
    return directory


@pytest.fixture(autouse=True)
def on_shelf(shelf, monkeypatch):
    monkeypatch.setenv("DFLASH_EXPERIMENTS", str(shelf))


def run(place: Path, *overrides: str, name: str = "twelve") -> Any:
    """Run an experiment in a place of its own; returns the lab and what came out."""
    said: list[str] = []
    lab = Lab(Store(place / "store"), said.append, progress=False)
    lab.said = said  # type: ignore[attr-defined]
    experiment = load_experiment(name, [*SMALL, SEEDS, *overrides])
    return lab, run_experiment(lab, experiment, place)


def forked(words: list[str]) -> BaseProcess:
    """A command as a process of its own, forked where all imports are done already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.lab.executors.grid", "dflash.lab.run", *SLOW])
    environment = {"DFLASH_EXPERIMENTS": os.environ["DFLASH_EXPERIMENTS"]}
    process = context.Process(target=command, args=(words, environment))
    process.start()
    return process


def spawn(place: Path, *overrides: str) -> BaseProcess:
    """The experiment as a command."""
    places = ["--store", str(place / "store"), "--results", str(place)]
    return forked(["ablate", "twelve", *SMALL, SEEDS, *overrides, *places])


@pytest.fixture(scope="session")
def whole(shelf, tmp_path_factory) -> dict[str, str]:
    """The tables of an uninterrupted run in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DFLASH_EXPERIMENTS", str(shelf))
        place = tmp_path_factory.mktemp("whole")
        _, finished = run(place)
    assert finished.failed == []
    return tables(finished.directory)
