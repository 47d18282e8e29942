"""What verdicts and intervals are worth: the figures of docs/statistics.md, about a minute.

    .venv/bin/python -m benchmarks.verdicts

Draws experiments from a known truth by the generator of the tests and counts how often the real
statistics are right.
"""

from __future__ import annotations

import gc

import numpy as np

from analysis import statistics
from tests.analysis.simulated import SAMPLE, tau
from tests.analysis.test_power import (
    CASES,
    NO_EVIDENCE,
    RESAMPLES,
    SAME,
    unpaired_finds,
    verdicts,
)

COUNT = 400


def no_evidence(case: str) -> float:
    """How often arms that do not differ are said not to, at 80 prompts and three seeds."""
    rng = np.random.default_rng(1)
    said = [verdicts(tau(CASES[case], SAME, 80, 3, rng), rng)["arm"] for _ in range(COUNT)]
    return said.count(NO_EVIDENCE) / COUNT


def found() -> tuple[int, int]:
    """How often a difference of 3% is found, paired and unpaired."""
    rng = np.random.default_rng(1)
    paired = unpaired = 0
    for _ in range(COUNT):
        drawn = tau(SAMPLE, {"control": 0.0, "arm": 0.03}, 80, 3, rng)
        paired += verdicts(drawn, rng)["arm"] == "better"
        unpaired += unpaired_finds(drawn, rng)
    return paired, unpaired


def coverage(case: str, prompts: int, seeds: int) -> tuple[float, float]:
    """How often the interval of no difference holds 0: as it is, and by drawing alone."""
    rng = np.random.default_rng(2)
    stretched = drawn_alone = 0
    for _ in range(COUNT):
        drawn = tau(CASES[case], SAME, prompts, seeds, rng)
        gap = drawn["arm"] - drawn["control"]
        sides = gap, np.ones_like(gap), rng, RESAMPLES
        interval = statistics.bootstrap_ratio(*sides)
        low, high = np.quantile(statistics.resampled_ratios(*sides), [0.025, 0.975])
        stretched += interval.low <= 0 <= interval.high
        drawn_alone += low <= 0 <= high
    return stretched / COUNT, drawn_alone / COUNT


def main() -> None:
    gc.collect = lambda *_: 0  # statsmodels collects in every call
    print(f"{COUNT} experiments a row")
    for case in CASES:
        print(f"no difference, {case}: no evidence in {no_evidence(case):.1%}")
    print("a difference of 3%: found paired in {}, unpaired in {}".format(*found()))
    for prompts, seeds in ((12, 3), (12, 5), (80, 3), (80, 5), (200, 3), (200, 5)):
        for case in CASES:
            stretched, alone = coverage(case, prompts, seeds)
            where = f"{prompts} prompts, {seeds} seeds, {case}"
            print(f"{where}: covers in {stretched:.1%}, by drawing alone in {alone:.1%}")


if __name__ == "__main__":
    main()
