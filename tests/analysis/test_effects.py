"""Effect sizes against loops, and the next run's size against the standard error it promises."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from analysis import effects
from analysis.planning import halving
from analysis.statistics import VarianceSplit


def pairs(difference: np.ndarray, control: float = 2.0) -> pd.DataFrame:
    """difference [C, S] as rows of `statistics.pair`."""
    prompts, seeds = np.indices(difference.shape)
    flat = {"prompt_id": prompts.ravel(), "seed": seeds.ravel(), "difference": difference.ravel()}
    return pd.DataFrame(flat).assign(bench="b", turn=0, tau_control=control)


def test_relative_difference_is_of_the_sums() -> None:
    rows = pairs(np.array([[1.0], [0.0], [2.0]])).assign(tau_control=[1.0, 5.0, 4.0])
    interval = effects.relative_difference(rows, np.random.default_rng(0), 2000)
    assert interval.estimate == pytest.approx(100 * 3 / 10)
    assert interval.low < 30 < interval.high


def test_standardised_is_mean_over_deviation_of_prompt_means() -> None:
    wide = np.random.default_rng(0).normal(0.2, 1, (15, 3))
    means = [row.mean() for row in wide]
    centre = sum(means) / 15
    deviation = math.sqrt(sum((mean - centre) ** 2 for mean in means) / 14)
    assert effects.standardised(pairs(wide)) == pytest.approx(centre / deviation)
    assert np.isnan(effects.standardised(pairs(np.full((4, 2), 0.5))))
    assert np.isnan(effects.standardised(pairs(wide[:1])))


def test_rank_biserial_equals_a_loop_over_ranks() -> None:
    values = np.array([0.3, -0.1, 0.0, 0.5, -0.3, 0.2])
    kept = [value for value in values if value != 0]
    plus = minus = 0.0
    for value in kept:
        below = sum(abs(other) < abs(value) for other in kept)
        equal = sum(abs(other) == abs(value) for other in kept)
        rank = below + (equal + 1) / 2
        plus, minus = plus + rank * (value > 0), minus + rank * (value < 0)
    expected = (plus - minus) / (plus + minus)
    assert effects.rank_biserial(pairs(values[:, None])) == pytest.approx(expected)
    assert effects.rank_biserial(pairs(np.array([[1.0], [2.0]]))) == 1
    assert effects.rank_biserial(pairs(np.zeros((3, 1)))) == 0


def test_shares_count_prompts_not_seeds() -> None:
    rows = pairs(np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 0.0], [2.0, -1.0]]))
    assert effects.shares(rows) == effects.Shares(better=0.5, equal=0.25, worse=0.25)


def test_nothing_paired_has_no_size() -> None:
    nothing = pairs(np.zeros((0, 1)))
    sizes = [effects.standardised(nothing), effects.rank_biserial(nothing)]
    assert np.isnan([*sizes, effects.shares(nothing).better]).all()


def variance(split: VarianceSplit, prompts: float, seeds: float) -> float:
    return split.prompt / prompts + split.seed / seeds + split.residual / (prompts * seeds)


@pytest.mark.parametrize(
    "split", [VarianceSplit(1.0, 0.0, 0.5), VarianceSplit(0.0, 0.01, 3.0), VarianceSplit(0, 0, 2)]
)
def test_the_planned_sizes_are_the_first_that_halve_the_error(split: VarianceSplit) -> None:
    plan = halving(split, 40, 3)
    goal = variance(split, 40, 3) / 4 * (1 + 1e-9)
    for size, needed in (("prompts", plan.prompts), ("seeds", plan.seeds)):

        def at(count: float, size: str = size) -> float:
            return variance(split, *((count, 3) if size == "prompts" else (40, count)))

        if math.isinf(needed):
            assert at(1e12) > goal
        else:
            assert at(needed) <= goal < at(needed - 1)


def test_seeds_that_lead_cannot_be_bought_off_with_prompts() -> None:
    assert halving(VarianceSplit(0.1, 1.0, 0.1), 80, 3).prompts == math.inf
    assert halving(VarianceSplit(1.0, 0.0, 0.1), 80, 3).seeds == math.inf


def test_what_is_not_known_is_not_planned() -> None:
    one_seed = halving(VarianceSplit(1.0, math.nan, math.nan), 20, 1)
    assert one_seed.prompts == 80
    assert math.isnan(one_seed.seeds)
    for split in (VarianceSplit(*[math.nan] * 3), VarianceSplit(0.0, 0.0, 0.0)):
        plan = halving(split, 20, 3)
        assert math.isnan(plan.prompts)
        assert math.isnan(plan.seeds)
