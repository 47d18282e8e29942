"""Main effects and interactions against sums over every cell, written out."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.factorial import INTERACTION, MAIN, contrasts
from analysis.floor import Floor, Spread
from analysis.load import Result, load
from analysis.report import write_report
from analysis.summary import render
from analysis.table import summary_table

FEW = 300
LEVELS = {
    "control": {"depth": 1, "block": "both"},
    "causal": {"depth": 1, "block": "causal"},
    "two": {"depth": 2, "block": "both"},
    "two-causal": {"depth": 2, "block": "causal"},
    "three": {"depth": 3, "block": "both"},
    "three-causal": {"depth": 3, "block": "causal"},
}
# Depth helps, the causal mask costs, and three layers with the mask lose what the depth gave.
SHIFTS = [0.0, -0.1, 0.1, 0.0, 0.1, -0.2]


def with_levels(levels: Mapping[str, Mapping[str, object]]) -> Callable[[dict], None]:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        texts = frames["runs"]["arm"].map(lambda arm: json.dumps(levels.get(arm, {})))
        frames["runs"]["levels"] = texts

    return change


@pytest.fixture
def crossed(make_result: Callable[..., Path]) -> Result:
    arms = dict(zip(LEVELS, SHIFTS, strict=True)) | {"outside": 0.05}
    directory = make_result(arms=arms, change=with_levels(LEVELS))
    return load(directory.name, directory.parent)


def tau(result: Result, arm: str) -> pd.Series:
    """tau of one arm by bench, prompt, turn and seed."""
    runs = result.runs.set_index("run_id")
    rows = result.prompts[result.prompts["source"] == "replay"]
    rows = rows.assign(seed=rows["run_id"].map(runs["seed"]), arm=rows["run_id"].map(runs["arm"]))
    return rows[rows["arm"] == arm].set_index(["bench", "prompt_id", "turn", "seed"])["tau"]


def test_every_contrast_is_the_sum_over_its_cells(crossed: Result) -> None:
    table = contrasts(crossed, resamples=FEW).set_index(["kind", "contrast"])["estimate"]
    means = {arm: tau(crossed, arm) for arm in LEVELS}
    two = (means["two"] - means["control"] + means["two-causal"] - means["causal"]).mean() / 2
    assert table[MAIN, "depth: 1 → 2"] == pytest.approx(two)
    pairs = [("control", "causal"), ("two", "two-causal"), ("three", "three-causal")]
    causal = np.mean([(means[after] - means[before]).mean() for before, after in pairs])
    assert table[MAIN, "block: both → causal"] == pytest.approx(causal)
    together = means["three-causal"] - means["three"] - means["causal"] + means["control"]
    name = "depth: 1 → 3 × block: both → causal"
    assert table[INTERACTION, name] == pytest.approx(together.mean())
    assert len(table) == 3 + 2


def test_planted_effects_are_found_and_absent_ones_are_not(crossed: Result) -> None:
    verdicts = contrasts(crossed, resamples=FEW).set_index("contrast")["verdict"]
    assert verdicts["depth: 1 → 2"] == "better"
    assert verdicts["block: both → causal"] == "worse"
    assert verdicts["depth: 1 → 3 × block: both → causal"] == "together less than the sum"


def with_runs(result: Result, **columns: Mapping[str, object]) -> Result:
    """The result with values of `runs` replaced: column=arm -> value."""
    runs = result.runs.copy()
    for column, values in columns.items():
        for arm, value in values.items():
            runs.loc[runs["arm"] == arm, column] = value
    return dataclasses.replace(result, runs=runs)


def test_a_contrast_of_a_negative_control_is_invalid(crossed: Result) -> None:
    leaky = with_runs(crossed, invalid={"three": True})
    found = contrasts(leaky, resamples=FEW)
    table = found.set_index("contrast")
    without = ["depth: 1 → 2", "depth: 1 → 2 × block: both → causal"]
    assert set(table.index[table["verdict"] != "invalid"]) == set(without)
    assert table["p_holm"].isna().equals(table["invalid"])
    text = render(leaky, summary_table(leaky, resamples=FEW), found)
    assert "| depth: 1 → 3 (INVALID) " in text


def test_a_contrast_of_what_never_moved_is_refused(crossed: Result) -> None:
    """Only where its factors touch that component."""

    def named(text: str) -> str:
        return text.replace("depth", "drafter.mask_embedding").replace("block", "drafter.mlp_size")

    renamed = {arm: named(json.dumps(own)) for arm, own in LEVELS.items()}
    moved = {arm: json.dumps({"mlp": 0.1, "mask_embed": 0.1}) for arm in LEVELS}
    moved |= {arm: json.dumps({"mlp": 0.1}) for arm in ("control", "causal")}
    moved["two"] = json.dumps({"mlp": 0.1, "mask_embed": 0.0})
    table = contrasts(with_runs(crossed, levels=renamed, moved=moved), resamples=FEW)
    verdicts = table.set_index("contrast")["verdict"]
    refused = verdicts.index[verdicts == "refused (mask_embed never moved in an arm)"]
    assert set(refused) == {
        named("depth: 1 → 2"),
        named("depth: 1 → 2 × block: both → causal"),
    }
    assert verdicts[named("block: both → causal")] == "worse"


def test_contrasts_are_held_against_the_noise_floor(crossed: Result) -> None:
    found = contrasts(crossed, resamples=FEW).set_index("contrast")
    assert found["noise_floor"].isna().all()
    interaction = "depth: 1 → 3 × block: both → causal"
    size = abs(found.loc[interaction, "estimate"])

    def judged(bound: float) -> pd.DataFrame:
        one = Spread((1.0,) * 3, 1.0, 1.0, None, None, 0.0, 80)
        spread = dataclasses.replace(one, per_seed=(bound / one.bound(3),) * 3)
        floor = Floor("", "", "", "", "", "", "", 3, 80, {}, {"all": spread}, None, "")
        result = dataclasses.replace(crossed, floor=floor)
        return contrasts(result, resamples=FEW).set_index("contrast")

    assert judged(0.71 * size).loc[interaction, "verdict"].startswith("below the noise floor")
    table = judged(0.70 * size)
    assert table.loc[interaction, "verdict"] == "together less than the sum"
    floors = table.groupby("kind")["noise_floor"].first()
    assert floors[INTERACTION] == pytest.approx(math.sqrt(2) * 0.70 * size)
    assert floors[MAIN] == pytest.approx(0.70 * size)
    high = judged(100.0).loc["depth: 1 → 2", "verdict"]
    assert high == "below the noise floor (1e+02)"


def test_three_factors_average_over_the_third(make_result: Callable[..., Path]) -> None:
    names = ("a", "b", "c")
    levels = {
        "control" if not any(bits) else "arm" + "".join(map(str, bits)): dict(
            zip(names, bits, strict=True)
        )
        for bits in itertools.product([0, 1], repeat=3)
    }
    shifts = {arm: 0.1 * own["a"] * own["b"] - 0.05 * own["c"] for arm, own in levels.items()}
    directory = make_result(
        arms=shifts, seeds=[0], benches={"gsm8k": 12}, change=with_levels(levels)
    )
    result = load(directory.name, directory.parent)
    table = contrasts(result, resamples=FEW)
    assert len(table) == 3 + 3
    found = table.set_index("contrast")["estimate"]["a: 0 → 1 × b: 0 → 1"]
    expected = np.mean(
        [
            sum(
                (-1) ** (own["a"] + own["b"]) * tau(result, arm).mean()
                for arm, own in levels.items()
                if own["c"] == c
            )
            for c in (0, 1)
        ]
    )
    assert found == pytest.approx(expected)


def test_a_missing_cell_leaves_no_contrast_and_says_so(make_result: Callable[..., Path]) -> None:
    directory = make_result(
        arms=dict(zip(LEVELS, SHIFTS, strict=True)),
        failed={"three": (0, 1, 2)},
        change=with_levels(LEVELS),
    )
    assert contrasts(load(directory.name, directory.parent), resamples=FEW).empty
    text = write_report(directory, formats=(), resamples=FEW).read_text()
    assert "None: a cell of the grid was not measured." in text
    assert not (directory / "contrasts.csv").exists()


def test_the_summary_shows_them(crossed: Result) -> None:
    text = write_report(crossed.directory, formats=(), resamples=FEW).read_text()
    assert "| main effect | depth: 1 → 2" in text
    assert "Over all answers, looping ones included" in text
    csv = pd.read_csv(crossed.directory / "contrasts.csv")
    assert len(csv) == 5
    assert csv["p_holm"].notna().all()


def test_without_a_grid_there_is_nothing(make_result: Callable[..., Path]) -> None:
    directory = make_result()
    assert contrasts(load(directory.name, directory.parent)).empty
    assert "Main effects" not in write_report(directory, formats=(), resamples=FEW).read_text()
