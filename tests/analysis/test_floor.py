"""The noise floor: its bound, where it is kept, and who finds it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from analysis.floor import Floor, Spread, find, keep, place, read, setting, write
from dflash.model.errors import UserError

SPREAD = Spread((0.01, -0.03, 0.02), 0.03, 0.0, -0.02, None, 0.1, 80)
FLOOR = Floor(
    "toy", "", "cpu", "default", "cpu x2", "float32", "1", 3, 80, {}, {"all": SPREAD}, None, ""
)
CONFIG = {
    "recipe": "cpu",
    "tier": "default",
    "setting": "1234",
    "control": {"target": {"name": "toy"}},
}
RUNS = pd.DataFrame({"kind": ["drafter", "floor"], "status": "ok", "device": ["cpu x2", "?"]})


def test_bound_is_students_with_a_known_mean_of_nothing() -> None:
    rms = math.sqrt((0.01**2 + 0.03**2 + 0.02**2) / 3)
    assert SPREAD.bound(3) == pytest.approx(stats.t.ppf(0.975, 3) * rms / math.sqrt(3))
    assert SPREAD.bound(12) == pytest.approx(SPREAD.bound(3) / 2)


def test_a_floor_on_too_little_is_not_used() -> None:
    assert FLOOR.bound("all", 3) == SPREAD.bound(3)
    for thin in (replace(SPREAD, per_seed=(0.01, 0.02)), replace(SPREAD, prompts=9)):
        assert math.isnan(replace(FLOOR, reseeded={"all": thin}).bound("all", 3))
    assert math.isnan(FLOOR.bound("gsm8k", 3))
    assert math.isnan(FLOOR.bound("all", 0))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = place(tmp_path, CONFIG, RUNS)
    assert read(path) is None
    write(FLOOR, path)
    assert read(path) == FLOOR
    assert [item.name for item in path.parent.iterdir()] == ["noise.json"]
    path.write_text('{"target": "toy"}')
    with pytest.raises(UserError, match="run `dflash noise` again"):
        read(path)


def test_setting_and_device_name_a_floor() -> None:
    path = place(Path("r"), CONFIG, RUNS)
    assert path.parent.parent == Path("r/noise/toy")
    assert path.parent.name == setting(CONFIG, RUNS)
    assert path.parent.name.startswith("cpu-default-")
    assert place(Path("r"), CONFIG | {"setting": "5678"}, RUNS) != path
    assert place(Path("r"), CONFIG, RUNS.assign(device="cpu x64")) != path


def test_a_copy_is_found_alone_and_only_in_its_setting(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "mine"
    own = replace(FLOOR, setting=setting(CONFIG, RUNS))
    assert keep(folder, CONFIG, RUNS) is None
    write(own, place(folder.parent, CONFIG, RUNS))
    assert find(folder, CONFIG, RUNS) == own
    assert keep(folder, CONFIG, RUNS) == own
    elsewhere = folder.rename(tmp_path / "exported")
    assert find(elsewhere, CONFIG, RUNS) == own
    assert keep(elsewhere, CONFIG, RUNS) == own
    other = CONFIG | {"setting": "5678"}
    assert find(elsewhere, other, RUNS) is None
    assert keep(elsewhere, other, RUNS) is None
    assert not (elsewhere / "noise.json").exists()


def test_a_floor_measured_again_replaces_the_copy(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "mine"
    own = replace(FLOOR, setting=setting(CONFIG, RUNS))
    write(own, folder / "noise.json")
    again = replace(own, seeds=5)
    write(again, place(folder.parent, CONFIG, RUNS))
    assert find(folder, CONFIG, RUNS) == own, "what the report said"
    assert keep(folder, CONFIG, RUNS) == again
    assert find(folder, CONFIG, RUNS) == again
