"""The arithmetic against slow obvious references, and the claims it makes against simulation."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pandas as pd
import pytest

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


def simulate(rng: np.random.Generator, prompts: int, gain: float) -> tuple[np.ndarray, np.ndarray]:
    """Per-prompt tau of drafters A and B: 30 blocks of 15 slots, difficulty from the prompt."""
    ease = rng.beta(4, 3, size=prompts)
    results = []
    for shift in (0.0, gain):
        rate = np.clip(ease + shift, 0.0, 0.99)[:, None, None]
        right = rng.random((prompts, 30, 15)) < rate
        results.append(1 + np.cumprod(right, axis=2).sum(axis=2).mean(axis=1))
    return results[0], results[1]


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
    interval = st.bootstrap_ratio(top, bottom, np.random.default_rng(0), 100_000)
    assert interval.estimate == pytest.approx(top.sum() / bottom.sum())
    assert interval.standard_error == pytest.approx(np.std(values), rel=0.02)
    assert min(values) - 1e-12 <= interval.low <= np.quantile(values, 0.05)
    assert np.quantile(values, 0.95) <= interval.high <= max(values) + 1e-12


def test_standard_error_of_a_mean_is_the_unbiased_one() -> None:
    tau = np.random.default_rng(1).random((12, 1))
    interval = st.mean_tau(frame(tau), np.random.default_rng(0), 40_000)
    assert interval.standard_error == pytest.approx(tau.std(ddof=1) / np.sqrt(12), rel=0.02)


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


def test_same_against_same_is_covered_in_95_percent() -> None:
    """A/A: drafters of equal quality; 0 lies inside about 95% of the paired intervals."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        a, b = simulate(rng, 40, gain=0.0)
        interval = st.bootstrap_ratio((b - a)[:, None], np.ones((40, 1)), rng, 500)
        covered += interval.low <= 0 <= interval.high
    assert 0.91 <= covered / 300 <= 0.98


@pytest.mark.parametrize(("seed_variance", "least"), [(0.0, 0.93), (4.0, 0.78)])
def test_coverage_with_three_seeds(seed_variance: float, least: float) -> None:
    """Seeds that do not matter cost nothing; seeds that matter more than prompts cost coverage."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(150):
        prompt = rng.normal(0, 0.5, (40, 1)) + rng.normal(0, 0.9, (40, 3))
        seed = rng.normal(0, np.sqrt(seed_variance * 3 / 40), (1, 3))
        interval = st.bootstrap_ratio(prompt + seed, np.ones((40, 3)), rng, 300)
        covered += interval.low <= 0 <= interval.high
    assert least <= covered / 150


def test_planted_effect_is_found_paired_and_missed_unpaired() -> None:
    """The pairing table of conventions §2: 80 prompts, three points of per-token correctness."""
    rng = np.random.default_rng(1)
    found_paired = found_unpaired = 0
    for _ in range(40):
        a, b = simulate(rng, 80, gain=0.03)
        ones = np.ones((80, 1))
        paired = st.bootstrap_ratio((b - a)[:, None], ones, rng, 500)
        found_paired += paired.low > 0
        single = [st.bootstrap_ratio(x[:, None], ones, rng, 500) for x in (a, b)]
        spread = np.hypot(single[0].standard_error, single[1].standard_error)
        found_unpaired += single[1].estimate - single[0].estimate > 1.96 * spread
    assert found_paired >= 32
    assert found_unpaired <= 8


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
