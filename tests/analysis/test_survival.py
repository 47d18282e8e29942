"""Curves by slot against a loop over match lengths, censoring included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.load import load
from analysis.survival import greenwood, slot_curves, wilson

Make = Callable[..., Path]


def counters(matches: list[int], exist: list[int], slots: int) -> pd.DataFrame:
    """Survival counters of anchors with `matches` right slots of `exist` existing labels."""
    rows = []
    for slot in range(1, slots + 1):
        alive = [(m, e) for m, e in zip(matches, exist, strict=True) if m >= slot - 1]
        reached = [m for m, e in alive if e >= slot]
        rows.append(
            {"slot": slot, "reached": len(reached), "accepted": sum(m >= slot for m in reached)}
            | {"censored": sum(e < slot for m, e in alive if e >= slot - 1)}
            | {
                "labelled": sum(e >= slot for e in exist),
                "correct": sum(m >= slot for m in matches),
            }
        )
    return pd.DataFrame(rows)


def result_with(make_result: Make, per_seed: list[pd.DataFrame]) -> pd.DataFrame:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        frames["survival"] = pd.concat(
            [c.assign(run_id=f"control-{seed}", bench="b") for seed, c in enumerate(per_seed)]
        )

    directory = make_result(
        arms={"control": 0.0}, seeds=range(len(per_seed)), benches={"b": 2}, change=change
    )
    return slot_curves(load("toy", directory.parent))


def test_without_censoring_survival_is_the_share_of_anchors(make_result: Make) -> None:
    matches = [3, 2, 1, 0, 3]
    curve = result_with(make_result, [counters(matches, [3] * 5, 3)])
    expected = [np.mean([m >= slot for m in matches]) for slot in (1, 2, 3)]
    np.testing.assert_allclose(curve["survival"], expected)
    np.testing.assert_allclose(curve["conditional"], [4 / 5, 3 / 4, 2 / 3])


def test_a_block_cut_by_the_end_is_not_a_failure(make_result: Make) -> None:
    """Two of three labels exist and are right (V4): the slot after them counts nowhere."""
    curve = result_with(make_result, [counters([3, 2], [3, 2], 3)])
    np.testing.assert_allclose(curve["survival"], [1, 1, 1])
    assert curve["reached"].tolist() == [2, 2, 1]


def test_marginal_counts_slots_whatever_came_before(make_result: Make) -> None:
    """V3: conditional acceptance needs the slots before, marginal accuracy does not."""
    one = counters([0, 3], [3, 3], 3).assign(correct=[1, 2, 2])
    curve = result_with(make_result, [one])
    np.testing.assert_allclose(curve["marginal"], [1 / 2, 1, 1])
    np.testing.assert_allclose(curve["survival"], [1 / 2, 1 / 2, 1 / 2])
    assert (curve["marginal_low"] < curve["marginal"]).all()


def test_marginal_band_is_the_range_of_seeds(make_result: Make) -> None:
    one = counters([0, 3], [3, 3], 3).assign(correct=[1, 2, 2])
    two = result_with(make_result, [one, one.assign(correct=[2, 2, 0])])
    assert two["marginal_low"].tolist() == [0.5, 1, 0]
    assert two["marginal_high"].tolist() == [1, 1, 1]


def test_band_is_the_range_of_seeds(make_result: Make) -> None:
    curve = result_with(
        make_result, [counters([1, 1], [2, 2], 2), counters([0, 1, 0, 1], [2] * 4, 2)]
    )
    first = curve.iloc[0]
    assert (first["survival_low"], first["survival_high"]) == (0.5, 1.0)
    assert first["survival"] == pytest.approx(4 / 6)
    assert first["seeds"] == 2


def test_slot_nobody_reached_is_nan(make_result: Make) -> None:
    curve = result_with(make_result, [counters([0, 0], [3, 3], 3)])
    assert curve["conditional"].tolist()[0] == 0
    assert np.isnan(curve["conditional"].tolist()[2])


def test_bench_can_be_chosen(make_result: Make) -> None:
    result = load("toy", make_result(arms={"control": 0.0}).parent)
    parts = [slot_curves(result, bench)["reached"] for bench in ("gsm8k", "humaneval", "mt_bench")]
    assert sum(parts).equals(slot_curves(result)["reached"])


@pytest.mark.parametrize("band", [wilson, greenwood])
def test_binomial_bands_cover_independent_anchors(band: Callable) -> None:
    rng = np.random.default_rng(0)
    true = np.cumprod([0.7, 0.8]) if band is greenwood else np.array([0.7, 0.8])
    inside = np.zeros(2)
    for _ in range(1000):
        first = rng.binomial(200, 0.7)
        second = rng.binomial(first, 0.8)
        low, high = band(np.array([first, second]), np.array([200, first]).astype(float))
        inside += (low <= true) & (true <= high)
    assert (np.abs(inside / 1000 - 0.95) < 0.025).all()
