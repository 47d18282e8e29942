"""The noise floor: its bound, where it is kept, and who finds it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from analysis.floor import Floor, Spread, place, read, write
from dflash.model.errors import UserError

SPREAD = Spread((0.01, -0.03, 0.02), 0.03, 0.0, -0.02, None, 0.1, 80)
FLOOR = Floor(
    "toy", "cpu", "default", "cpu x2", "float32", "1", 3, 80, {}, {"all": SPREAD}, None, ""
)
CONFIG = {
    "recipe": "cpu",
    "tier": "default",
    "control": {
        "target": {"name": "toy"},
        "drafter": {"num_layers": 1},
        "train": {"lr": 1e-3, "logger": "csv", "checkpoint_every": 50},
        "seeds": [0, 1],
    },
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


@pytest.mark.parametrize(
    ("section", "change", "same"),
    [
        ("train", {"lr": 2e-3}, False),
        ("drafter", {"num_layers": 2}, False),
        ("train", {"logger": "wandb", "checkpoint_every": 5}, True),
    ],
)
def test_a_floor_belongs_to_one_setting(section: str, change: dict, same: bool) -> None:
    other = copy.deepcopy(CONFIG)
    other["control"][section] |= change
    assert (place(Path("r"), other, RUNS) == place(Path("r"), CONFIG, RUNS)) is same


def test_seeds_do_not_name_a_floor_and_the_device_does() -> None:
    path = place(Path("r"), CONFIG, RUNS)
    assert path.parent.parent == Path("r/noise/toy")
    assert path.parent.name.startswith("cpu-default-")
    more = copy.deepcopy(CONFIG)
    more["control"]["seeds"] = [5]
    assert place(Path("r"), more, RUNS) == path
    assert place(Path("r"), CONFIG, RUNS.assign(device="cpu x64")) != path
