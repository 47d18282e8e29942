"""Every shipped experiment, run: all arms, one seed, on a target of a few thousand parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.load import load
from dflash.lab.budget import match_budget
from dflash.lab.config import LabConfig
from dflash.lab.experiment import load_experiment
from dflash.lab.pipeline import cell_keys
from dflash.lab.run import run_experiment
from dflash.lab.schema import difference
from dflash.lab.stages import pace
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info
from dflash.lab.store import Store, read_manifest

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "experiments" / "ablation").glob("*.yaml"))
RECIPE = [  # the shape of the default recipe's drafter, on which the arms are patches
    "seeds=[0]",
    "train.init=random",
    "drafter.block_size=5",
    "drafter.features.taps=uniform:5",
]


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory) -> Store:
    """What one experiment built serves the next, as it would for a user."""
    return Store(tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_it_runs_and_its_arms_differ_in_what_they_declare(
    path, small, small_overrides, deep_target, shared_store, tmp_path, monkeypatch
):
    monkeypatch.setattr(pace, "STEPS", 2)
    lab = Lab(shared_store, lambda text: None, progress=False)
    overrides = [*small_overrides, *RECIPE, f"target.source={deep_target}"]
    experiment = match_budget(lab, load_experiment(path.stem, overrides))
    finished = run_experiment(lab, experiment, tmp_path)
    assert finished.failed == []
    runs = load(path.stem, tmp_path).runs.set_index("arm")
    control = trained_as(lab, experiment.config)
    for arm in experiment.arms[1:]:
        recorded = json.loads(runs.loc[arm.name, "config_diff"])
        assert recorded.keys() == arm.diff.keys() > set()
        assert difference(control, trained_as(lab, arm.config)).keys() == {
            key for key in arm.diff if key.startswith(("drafter.", "train."))
        }


def trained_as(lab: Lab, config: LabConfig) -> dict[str, object]:
    """What the store's manifest says that a drafter was trained with."""
    info = target_info(lab, config.target)
    (key,) = [key for key in cell_keys(config, info, 0) if key.stage == "train"]
    return read_manifest(lab.store.path(key))["config"]
