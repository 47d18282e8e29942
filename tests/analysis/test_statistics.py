"""The arithmetic against slow obvious references, and the claims it makes against simulation."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from analysis import statistics as st


def frame(tau: np.ndarray, bench: str = "b") -> pd.DataFrame:
    """tau [C, S] as rows."""
    return pd.DataFrame(
        [
            {"bench": bench, "prompt_id": f"p{c}", "turn": 0, "seed": s, "tau": tau[c, s]}
            for c in range(tau.shape[0])
            for s in range(tau.shape[1])
        ]
    )


def test_cells_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    rows = frame(rng.random((5, 3))).sample(frac=0.7, random_state=1)
    top, bottom = st.cells(rows, rows["tau"], rows["tau"].notna())
    prompts, seeds = sorted(rows["prompt_id"].unique()), sorted(rows["seed"].unique())
    for c, prompt in enumerate(prompts):
        for s, seed in enumerate(seeds):
            here = [r.tau for r in rows.itertuples() if (r.prompt_id, r.seed) == (prompt, seed)]
            assert top[c, s] == pytest.approx(sum(here))
            assert bottom[c, s] == len(here)


def test_bootstrap_equals_the_enumeration_of_all_resamples() -> None:
    rng = np.random.default_rng(3)
    top, bottom = rng.random((3, 3)), 1 + rng.random((3, 3))
    values = []
    for prompts in itertools.product(range(3), repeat=2):  # 3 - 1 draws
        for seeds in itertools.product(range(3), repeat=2):
            drawn = [(c, s) for c in prompts for s in seeds]
            values.append(sum(top[at] for at in drawn) / sum(bottom[at] for at in drawn))
    drawn = st.resampled_ratios(top, bottom, np.random.default_rng(0), 100_000)
    assert drawn.std() == pytest.approx(np.std(values), rel=0.02)
    assert min(values) - 1e-12 <= drawn.min() <= np.quantile(values, 0.05)
    assert np.quantile(values, 0.95) <= drawn.max() <= max(values) + 1e-12


def test_one_seed_has_students_standard_error_and_width() -> None:
    tau = np.random.default_rng(1).normal(size=12)
    error, freedom = st.clustered_error(tau[:, None], np.ones((12, 1)))
    assert error == pytest.approx(scipy.stats.sem(tau))
    assert freedom == 11
    interval = st.bootstrap_ratio(tau[:, None], np.ones((12, 1)), np.random.default_rng(0))
    student = scipy.stats.ttest_1samp(tau, 0).confidence_interval()
    width = student.high - student.low
    assert interval.high - interval.low == pytest.approx(width, rel=0.03)
    assert 2 * 1.96 * interval.standard_error == pytest.approx(width, rel=0.001)


def test_clustered_error_equals_mean_squares() -> None:
    """Against the textbook's two-way table, where all three variances are mean squares / cells."""
    table = np.random.default_rng(2).normal(size=(7, 4)) + np.arange(4)
    cells = table.size
    by_prompt = 4 * table.mean(axis=1).var(ddof=1) / cells
    by_seed = 7 * table.mean(axis=0).var(ddof=1) / cells
    split = st.variance_split(frame(table))
    both = by_prompt + by_seed - split.residual / cells
    error, freedom = st.clustered_error(table, np.ones_like(table))
    assert error**2 == pytest.approx(max(by_prompt, by_seed, both))
    assert freedom == pytest.approx(error**4 / (by_prompt**2 / 6 + by_seed**2 / 3))


def test_a_ratio_has_the_error_of_its_jackknife() -> None:
    rng = np.random.default_rng(4)
    bottom = rng.uniform(1, 3, (60, 1))
    top = 2 * bottom + rng.normal(size=(60, 1))
    left_out = [np.delete(top, c).sum() / np.delete(bottom, c).sum() for c in range(60)]
    jackknife = np.sqrt(59 / 60 * ((left_out - np.mean(left_out)) ** 2).sum())
    assert st.clustered_error(top, bottom)[0] == pytest.approx(jackknife, rel=0.03)


def test_both_turns_of_a_conversation_are_one_unit() -> None:
    rows = frame(np.random.default_rng(1).random((20, 1)))
    twice = pd.concat([rows, rows.assign(turn=1)])
    once = st.mean_tau(rows, np.random.default_rng(0))
    assert st.mean_tau(twice, np.random.default_rng(0)) == once


def test_mean_and_pooled_tau_and_speedup_differ_as_defined() -> None:
    rows = frame(np.zeros((2, 1))).assign(
        emitted=[10, 90], steps=[10, 30], ar_seconds=[1.0, np.nan], spec_seconds=[0.5, 2.0]
    )
    rows["tau"] = rows["emitted"] / rows["steps"]
    rng = np.random.default_rng(0)
    assert st.mean_tau(rows, rng).estimate == pytest.approx((1 + 3) / 2)
    assert st.pooled_tau(rows, rng).estimate == pytest.approx(100 / 40)
    assert st.speedup(rows, rng).estimate == pytest.approx(2.0)  # the untimed answer drops out


def test_nothing_measured_gives_nan_and_one_prompt_no_interval() -> None:
    rng = np.random.default_rng(0)
    assert np.isnan(st.mean_tau(frame(np.zeros((0, 1))).reindex(columns=[
        "bench", "prompt_id", "seed", "tau"]), rng).estimate)  # fmt: skip
    one = st.mean_tau(frame(np.array([[2.0, 3.0]])), rng)
    assert one.estimate == 2.5
    assert np.isnan(one.low)


def test_equal_generators_give_equal_intervals() -> None:
    rows = frame(np.random.default_rng(2).random((15, 3)))
    first, second, other = (st.mean_tau(rows, np.random.default_rng(s)) for s in (5, 5, 6))
    assert first == second
    assert first != other


def test_bootstrap_of_320_prompts_and_3_seeds_takes_well_under_a_second() -> None:
    top = np.random.default_rng(0).random((320, 3))
    start = time.process_time()
    st.bootstrap_ratio(top, np.ones_like(top), np.random.default_rng(0))
    assert time.process_time() - start < 1


def test_ragged_designs_weigh_every_answer_once() -> None:
    rows = frame(np.arange(8.0).reshape(4, 2)).drop(index=[1, 2])
    interval = st.mean_tau(rows, np.random.default_rng(0))
    assert interval.estimate == pytest.approx(rows["tau"].mean())
    assert interval.low < interval.estimate < interval.high


def test_pairs_match_bench_prompt_turn_and_seed() -> None:
    control = frame(np.array([[1.0, 2.0], [3.0, 4.0]]))
    arm = frame(np.array([[1.5, 2.0], [3.0, np.nan]])).drop(index=1)
    pairs = st.pair(arm.sample(frac=1, random_state=0), control)
    assert sorted(pairs["difference"]) == [0.0, 0.5]
    with pytest.raises(pd.errors.MergeError):
        st.pair(pd.concat([arm, arm]), control)


def test_wilcoxon_equals_the_enumeration_of_all_signs() -> None:
    differences = np.array([0.9, -0.2, 0.4, 0.7, -0.1, 0.35, 0.5, 0.8])
    pairs = frame(differences[:, None]).rename(columns={"tau": "difference"})
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1
    observed = abs(ranks[differences > 0].sum() - ranks.sum() / 2)
    hits = sum(
        abs(ranks[np.array(signs)].sum() - ranks.sum() / 2) >= observed
        for signs in itertools.product([False, True], repeat=8)
    )
    assert st.wilcoxon_p(pairs) == pytest.approx(hits / 2**8)


def test_wilcoxon_works_on_means_over_seeds_and_turns() -> None:
    rng = np.random.default_rng(4)
    wide = rng.normal(0.3, 1, size=(12, 3))
    many = frame(wide).rename(columns={"tau": "difference"})
    means = frame(wide.mean(axis=1, keepdims=True)).rename(columns={"tau": "difference"})
    assert st.wilcoxon_p(many) == pytest.approx(st.wilcoxon_p(means))
    assert st.wilcoxon_p(many.assign(difference=0.0)) == 1.0
    assert np.isnan(st.wilcoxon_p(many.iloc[:0]))


def test_holm_equals_a_loop_and_skips_what_was_not_compared() -> None:
    p_values = np.array([0.04, np.nan, 0.001, 0.03, 0.5])
    order = [index for index in np.argsort(p_values) if not np.isnan(p_values[index])]
    expected = np.full(5, np.nan)
    running = 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(order) - place) * p_values[index]))
        expected[index] = running
    np.testing.assert_allclose(st.holm(p_values), expected)
    assert np.isnan(st.holm(np.array([np.nan]))).all()


def test_smallest_detectable_effect_is_found_in_80_percent() -> None:
    error = 0.07
    effect = st.smallest_detectable(error)
    estimates = np.random.default_rng(0).normal(effect, error, size=50_000)
    assert np.mean(np.abs(estimates) > 1.96 * error) == pytest.approx(0.8, abs=0.01)


def test_variance_split_recovers_planted_components() -> None:
    rng = np.random.default_rng(0)
    prompts, seeds = rng.normal(0, 1.0, (400, 1)), rng.normal(0, 0.5, (1, 60))
    split = st.variance_split(frame(prompts + seeds + rng.normal(0, 0.3, (400, 60))))
    assert split.prompt == pytest.approx(1.0, rel=0.2)
    assert split.seed == pytest.approx(0.25, rel=0.4)
    assert split.residual == pytest.approx(0.09, rel=0.05)


def test_variance_split_needs_two_seeds_and_two_prompts() -> None:
    tau = np.random.default_rng(0).random((6, 1))
    one_seed = st.variance_split(frame(tau))
    assert one_seed.prompt == pytest.approx(tau.var(ddof=1))
    assert np.isnan(one_seed.seed)
    assert np.isnan(st.variance_split(frame(tau[:1])).prompt)
