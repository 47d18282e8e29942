"""Measure the noise floor from an experiment whose arms differ in nothing that has an effect.

Two kinds of arms do (experiments/ablation/noise.yaml): one that sets `train.replica` alone is the
control run again, one that sets `train.seed_shift` alone is the control from other seeds, paired
with it as if they were the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.floor import Floor, Spread, devices, place, setting, write
from analysis.load import Result
from analysis.statistics import CLUSTER, RESAMPLES
from analysis.table import headline_source, measured

RERUN, RESEEDED = "train.replica", "train.seed_shift"


def arm_that_sets(result: Result, switch: str) -> str | None:
    """The first arm that sets this switch and no other."""
    arms = result.config.get("arms", {})
    return next((name for name, patch in arms.items() if set(patch) == {switch}), None)


def spread(pairs: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES) -> Spread:
    """Summarise the `difference` of at least one pair (see `statistics.pair`)."""
    per_seed = pairs.groupby("seed")["difference"].mean()
    by_prompt = pairs.groupby(CLUSTER)["difference"].mean()
    interval = statistics.paired_difference(pairs, rng, resamples)
    return Spread(
        per_seed=tuple(map(float, per_seed)),
        largest=float(per_seed.abs().max()),
        difference=interval.estimate,
        low=_known(interval.low),
        high=_known(interval.high),
        prompt_sd=_known(by_prompt.std(ddof=1)),
        prompts=len(by_prompt),
    )


def measure(result: Result, seed: int = 0, resamples: int = RESAMPLES) -> Floor | None:
    """The floor; None unless the control and an arm of each kind were measured."""
    again, reseeded = (arm_that_sets(result, switch) for switch in (RERUN, RESEEDED))
    rows, decoded = measured(result, headline_source(result)), measured(result, "decode")
    rerun = _per_bench(rows, again, seed, resamples)
    others = _per_bench(rows, reseeded, seed, resamples)
    if not rerun or not others:
        return None
    timed = statistics.pair_speed(decoded[decoded["arm"] == again], decoded[decoded["control"]])
    runs = result.runs[result.runs["control"] & (result.runs["status"] == "ok")]
    return Floor(
        **{name: "; ".join(sorted(runs[name].unique())) for name in
           ("target", "device", "dtype", "code_version")},
        setting=setting(result.config, result.runs),
        recipe=result.config["recipe"],
        tier=result.config["tier"],
        seeds=len(others["all"].per_seed),
        prompts=others["all"].prompts,
        rerun=rerun,
        reseeded=others,
        clock=spread(timed, np.random.default_rng(seed), resamples) if len(timed) else None,
        clock_device=devices(timed),
    )  # fmt: skip


def save(result: Result, seed: int = 0, resamples: int = RESAMPLES) -> Path | None:
    """Write noise.json to its `place`; None when the experiment does not measure noise."""
    floor = measure(result, seed, resamples)
    if floor is None:
        return None
    path = place(result.directory.parent, result.config, result.runs)
    write(floor, path)
    return path


def _per_bench(rows: pd.DataFrame, arm: str | None, seed: int, resamples: int) -> dict[str, Spread]:
    pairs = statistics.pair(rows[rows["arm"] == arm], rows[rows["control"]])
    benches = {bench: pairs[pairs["bench"] == bench] for bench in pairs["bench"].unique()}
    return {
        bench: spread(own, np.random.default_rng(seed), resamples)
        for bench, own in ({"all": pairs} | benches).items()
        if len(own)
    }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
