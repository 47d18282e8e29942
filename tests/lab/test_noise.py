"""`dflash noise` on the tiny target, and what a later experiment makes of its floor."""

from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest

from analysis.report import write_report
from dflash.cli import main


@pytest.fixture
def results(small, small_overrides, tmp_path, capsys):
    """Run a verb in one store; returns the results directory."""
    places = ["--store", str(tmp_path / "store"), "--results", str(tmp_path / "results")]

    def run(*argv: str):
        overrides = [item for item in small_overrides if not item.startswith("seeds")]
        assert main([*argv, *overrides, *places]) == 0, capsys.readouterr().err
        return tmp_path / "results"

    return run


def test_noise_is_measured_once_and_found_by_later_experiments(results, small):
    path = results("noise", "seeds=[0,1,2]")
    (place,) = path.glob("noise/tiny/*/noise.json")
    floor = json.loads(place.read_text())
    assert (floor["target"], floor["seeds"], floor["prompts"]) == ("tiny", 3, 3)
    assert floor["device"].startswith("cpu ")
    assert floor["rerun"]["all"]["per_seed"] == [0.0, 0.0, 0.0]  # training is deterministic here
    assert len(floor["reseeded"]["vicuna"]["per_seed"]) == 3
    assert len(floor["clock"]["per_seed"]) == 3
    assert floor["clock"]["largest"] > 0
    assert floor["clock_device"].startswith("cpu ")

    table = pd.read_csv(path / "noise" / "summary.csv")
    again = table[(table["arm"] == "again") & (table["bench"] == "all")].iloc[0]
    assert again["difference"] == again["difference_low"] == again["difference_high"] == 0
    runs = pd.read_parquet(path / "noise" / "runs.parquet").set_index("run_id")
    assert runs.loc["again-s0", "final_loss"] == runs.loc["control-s0", "final_loss"]
    assert runs.loc["reseeded-s0", "final_loss"] != runs.loc["control-s0", "final_loss"]

    results("ablate", small, "seeds=[0,1]")
    text = (path / small / "summary.md").read_text()
    assert "Noise floor (3 seeds, 3 prompts): too few for a verdict" in text
    assert "the same cell trained again differs by up to 0." in text
    kept = path / small / "noise.json"
    assert kept.read_bytes() == place.read_bytes()
    shutil.rmtree(path / "noise")  # as in an export
    before = {name: (path / small / name).read_bytes() for name in ("summary.md", "summary.csv")}
    write_report(path / small, ())
    assert all((path / small / name).read_bytes() == text for name, text in before.items())
    results("ablate", small, "seeds=[0]", "train.lr=1e-5")  # another setting, another floor
    assert "floor of this setting is not known" in (path / small / "summary.md").read_text()
    assert not kept.exists()
