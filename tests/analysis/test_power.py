"""What the verdicts are worth: false alarms, coverage and power, on results drawn from a truth."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis import statistics as st
from analysis.caveats import caveats
from analysis.floor import Floor
from analysis.noise import spread
from analysis.table import summary_table
from analysis.verdict import verdict
from tests.analysis.simulated import OWN_PROMPTS, SAMPLE, SEEDS_MATTER, Truth, result, tau

NO_EVIDENCE = "no evidence of a difference"
SEEDS_LEAD = Truth(seed=0.05)
EVERYTHING = Truth(seed=0.02, own_prompt=0.15)
CASES = {
    "as in the sample": SAMPLE,
    "seeds matter": SEEDS_MATTER,
    "prompts lead": OWN_PROMPTS,
    "seeds lead": SEEDS_LEAD,
    "everything": EVERYTHING,
}
RESAMPLES = 300
Tau = np.ndarray  # [C, S]


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """statsmodels collects garbage in every call: by far the slowest part of a verdict."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


def rows(tau: Tau) -> pd.DataFrame:
    prompts, seeds = np.indices(tau.shape)
    flat = {"prompt_id": prompts.ravel(), "seed": seeds.ravel(), "tau": tau.ravel()}
    return pd.DataFrame(flat).assign(bench="bench", turn=0)


def verdicts(
    drawn: Mapping[str, Tau], rng: np.random.Generator, floor: float = float("nan")
) -> dict[str, str]:
    """What `summary_table` says about each arm over one bench, without the rest of the table."""
    control = rows(drawn["control"])
    pairs = {arm: st.pair(rows(tau), control) for arm, tau in drawn.items() if arm != "control"}
    p_values = st.holm(np.array([st.wilcoxon_p(pair) for pair in pairs.values()]))
    return {
        arm: verdict(
            st.paired_difference(pair, rng, RESAMPLES),
            p,
            *drawn["control"].shape,
            noise_floor=floor,
        ).split(" (")[0]
        for (arm, pair), p in zip(pairs.items(), p_values, strict=True)
    }


def unpaired_finds(drawn: Mapping[str, Tau], rng: np.random.Generator) -> bool:
    """The comparison without pairing: two bootstraps, one for each arm, and Welch's t."""
    arms = [st.mean_tau(rows(drawn[arm]), rng, RESAMPLES) for arm in ("control", "arm")]
    errors = np.array([arm.standard_error for arm in arms])
    freedom = (errors**2).sum() ** 2 / (errors**4 / (len(drawn["arm"]) - 1)).sum()
    found = abs(arms[1].estimate - arms[0].estimate) / np.hypot(*errors)
    return bool(found > stats.t.ppf(0.975, freedom))


SAME = {"control": 0.0, "arm": 0.0}


def floor_of(truth: Truth, rng: np.random.Generator) -> Floor:
    """What `dflash noise` would store for this truth."""
    noise = tau(truth, {"control": 0.0, "reseeded": 0.0}, 80, 3, rng)
    spreads = {"all": spread(st.pair(rows(noise["reseeded"]), rows(noise["control"])), rng, 100)}
    return Floor(
        "toy", "", "cpu", "default", "cpu", "float32", "1", 3, 80, spreads, spreads, None, "cpu"
    )


@pytest.mark.parametrize("case", CASES)
def test_same_against_same_is_no_evidence_in_95_of_100(case: str) -> None:
    """Where seeds lead, the interval alone decides, at its nominal 5%: 94 is within chance."""
    rng = np.random.default_rng(0)
    said = [verdicts(tau(CASES[case], SAME, 80, 3, rng), rng)["arm"] for _ in range(100)]
    assert said.count(NO_EVIDENCE) >= (94 if case == "seeds lead" else 95)


def test_with_a_noise_floor_seeds_that_lead_give_no_winner_in_95_of_100() -> None:
    rng = np.random.default_rng(0)
    winners = 0
    for _ in range(100):
        floor = floor_of(SEEDS_LEAD, rng).bound("all", 3)
        said = verdicts(tau(SEEDS_LEAD, SAME, 80, 3, rng), rng, floor)
        winners += said["arm"] in ("better", "worse")
    assert winners <= 5


@pytest.mark.parametrize("prompts", [12, 80])
@pytest.mark.parametrize("case", CASES)
def test_intervals_cover_the_truth(case: str, prompts: int) -> None:
    """Where the residual leads, the interval is on the safe side: it may cover in 99%."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        drawn = tau(CASES[case], {"control": 0.0, "arm": 0.0}, prompts, 3, rng)
        gap = drawn["arm"] - drawn["control"]
        interval = st.bootstrap_ratio(gap, np.ones_like(gap), rng, RESAMPLES)
        covered += interval.low <= 0 <= interval.high
    most = 0.995 if case in ("as in the sample", "seeds matter") else 0.985
    assert 0.92 <= covered / 400 <= most


def test_drawing_three_seeds_alone_would_not_cover() -> None:
    """Why the intervals are stretched."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        drawn = tau(SEEDS_LEAD, {"control": 0.0, "arm": 0.0}, 80, 3, rng)
        gap = drawn["arm"] - drawn["control"]
        draws = st.resampled_ratios(gap, np.ones_like(gap), rng, RESAMPLES)
        low, high = np.quantile(draws, [0.025, 0.975])
        covered += low <= 0 <= high
    assert covered / 200 < 0.88


def test_three_percent_at_80_prompts_and_three_seeds_is_found_paired_and_missed_unpaired() -> None:
    rng = np.random.default_rng(0)
    paired = unpaired = 0
    for _ in range(100):
        drawn = tau(SAMPLE, {"control": 0.0, "arm": 0.03}, 80, 3, rng)
        paired += verdicts(drawn, rng)["arm"] == "better"
        unpaired += unpaired_finds(drawn, rng)
    assert paired >= 90
    assert unpaired <= 10


@pytest.mark.parametrize("case", ["as in the sample", "prompts lead"])
def test_holm_keeps_the_errors_of_a_family_of_five(case: str) -> None:
    """Seed-free only: Wilcoxon's p knows the prompts of these seeds, so where seeds matter each
    comparison has the 5% of its interval to itself.
    """
    rng = np.random.default_rng(0)
    arms = {"control": 0.0} | {f"arm{index}": 0.0 for index in range(5)}
    families = [verdicts(tau(CASES[case], arms, 80, 3, rng), rng) for _ in range(60)]
    assert sum(set(said.values()) != {NO_EVIDENCE} for said in families) <= 3


def test_the_summary_says_the_same_as_these_pieces() -> None:
    rng = np.random.default_rng(0)
    drawn = tau(SAMPLE, {"control": 0.0, "worse": -0.05, "same": 0.0, "better": 0.03}, 80, 3, rng)
    table = summary_table(result(drawn), resamples=RESAMPLES)
    said = table[table["bench"] == "bench"].set_index("arm")["verdict"]
    pieces = verdicts(drawn, rng)
    assert pieces == {"worse": "worse", "same": NO_EVIDENCE, "better": "better"}
    assert {arm: said[arm].split(" (")[0] for arm in pieces} == pieces
    row = table.set_index(["arm", "bench"]).loc[("better", "all")]
    assert row["relative_percent"] == pytest.approx(3, abs=0.8)
    assert row["better_share"] > 0.7
    assert row["tau_variance_prompt"] > 10 * row["tau_variance_residual"]


def test_a_floor_from_three_seeds_is_reached_by_nothing_in_95_of_100() -> None:
    """The rule of `Spread.bound`, alone: a mean of nothing lies below it."""
    rng = np.random.default_rng(0)
    below = 0
    for _ in range(400):
        noise = tau(SEEDS_LEAD, {"control": 0.0, "reseeded": 0.0}, 80, 3, rng)
        later = tau(SEEDS_LEAD, {"control": 0.0, "arm": 0.0}, 80, 3, rng)
        gap = noise["reseeded"] - noise["control"]
        pairs = rows(gap).rename(columns={"tau": "difference"})
        bound = spread(pairs, rng, 20).bound(3)
        below += abs((later["arm"] - later["control"]).mean()) < bound
    assert 0.93 <= below / 400 <= 0.975


def test_a_difference_below_the_floor_is_stamped_and_one_above_is_not() -> None:
    rng = np.random.default_rng(0)
    floor = floor_of(Truth(seed=0.03), rng)  # from seeds that differ more than these three do
    drawn = tau(SAMPLE, {"control": 0.0, "small": 0.03, "large": 0.15}, 80, 3, rng)
    plain = summary_table(result(drawn), resamples=RESAMPLES).set_index(["arm", "bench"])
    assert set(plain.loc[["small", "large"], "verdict"]) == {"better"}
    judged = summary_table(result(drawn, floor=floor), resamples=RESAMPLES)
    judged = judged.set_index(["arm", "bench"])
    bound = floor.bound("all", 3)
    assert plain.loc[("small", "all"), "difference"] < bound
    assert judged.loc[("small", "all"), "verdict"] == f"below the noise floor ({bound:.2g})"
    assert judged.loc[("small", "bench"), "verdict"] == "better"  # no floor for this bench
    assert judged.loc[("large", "all"), "verdict"] == "better"
    assert judged.loc[("large", "all"), "noise_floor"] == bound


def test_caveats_name_the_floor_and_what_is_below_it_in_speed() -> None:
    rng = np.random.default_rng(0)
    floor = floor_of(SAMPLE, rng)
    floor = replace(floor, clock=replace(floor.reseeded["all"], per_seed=(0.02, -0.01, 0.03)))
    drawn = tau(SAMPLE, {"control": 0.0, "arm": 0.0}, 80, 3, rng)
    found = result(drawn, floor=floor)
    table = summary_table(found, resamples=50).assign(speed_ratio=[np.nan, np.nan, 1.03, 1.03])
    text = "\n".join(caveats(found, table))
    bound = floor.bound("all", 3)
    assert f"a change without effect moves τ by up to {bound:.2g} in 95 of 100 runs" in text
    clock = np.expm1(floor.clock.bound(3))
    assert f"differs by up to {clock:.1%} in 95 of 100 runs; below it: arm." in text
    assert "other code" not in text
    prompts = found.prompts.assign(source="decode", device="H200")
    there = replace(found, prompts=pd.concat([found.prompts, prompts]))
    text = "\n".join(caveats(there, table))
    assert "The noise floor of speed was measured on cpu, not on H200." in text
    assert "below it: arm" not in text
    other = result(drawn, floor=replace(floor, code_version="2"))
    assert "measured with other code" in "\n".join(caveats(other, table))
