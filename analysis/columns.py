"""Groups of columns of the summary table, each computed from the rows it is about."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis import effects, statistics
from analysis.planning import halving
from analysis.statistics import CLUSTER, Interval, VarianceSplit

BASELINE = "same loop, block size 1"
Columns = dict[str, object]


def run_columns(runs: pd.DataFrame) -> Columns:
    """What is known of one arm before anything is measured; rows of `runs`."""
    fine = runs[runs["status"] == "ok"]
    return {
        "kind": runs["kind"].iloc[0],
        "control": bool(runs["control"].iloc[0]),
        "invalid": bool(runs["invalid"].any()),
        "failed": int((runs["status"] == "failed").sum()),
        "parameters": fine["parameters"].mean(),
        "train_seconds": fine["train_seconds"].mean(),
        "device": "; ".join(sorted(fine["device"].unique())),
        "dtype": "; ".join(sorted(fine["dtype"].unique())),
    }


def tau_columns(rows: pd.DataFrame, seed: int, resamples: int) -> Columns:
    """Tau of one arm, and where its variance is."""
    rows = rows[rows["tau"].notna()]
    interval = statistics.mean_tau(rows, np.random.default_rng(seed), resamples)
    pooled = rows["emitted"].sum() / rows["steps"].sum() if len(rows) else np.nan
    counts = {"seeds": int(rows["seed"].nunique()), "prompts": len(rows.drop_duplicates(CLUSTER))}
    split = statistics.variance_split(rows)
    return counts | _interval("tau", interval) | {"tau_pooled": pooled} | _variance("tau", split)


def difference_columns(pairs: pd.DataFrame, seed: int, resamples: int) -> Columns:
    """Paired difference to the control: raw, as effect sizes, and what a better run needs."""
    interval = statistics.paired_difference(pairs, np.random.default_rng(seed), resamples)
    relative = effects.relative_difference(pairs, np.random.default_rng(seed), resamples)
    split = statistics.variance_split(pairs, "difference")
    seeds, prompts = int(pairs["seed"].nunique()), len(pairs.drop_duplicates(CLUSTER))
    shares = effects.shares(pairs)
    plan = halving(split, prompts, seeds)
    return (
        _interval("difference", interval)
        | {
            "p": statistics.wilcoxon_p(pairs),
            "difference_se": interval.standard_error,
            "detectable": statistics.smallest_detectable(interval.standard_error),
            "paired_seeds": seeds,
            "paired_prompts": prompts,
        }
        | _interval("relative_percent", relative)
        | {
            "cohens_dz": effects.standardised(pairs),
            "rank_biserial": effects.rank_biserial(pairs),
            "better_share": shares.better,
            "equal_share": shares.equal,
            "worse_share": shares.worse,
        }
        | _variance("difference", split)
        | {"halving_prompts": plan.prompts, "halving_seeds": plan.seeds}
    )


def decoding_columns(rows: pd.DataFrame, pairs: pd.DataFrame, seed: int, resamples: int) -> Columns:
    """Speed and losslessness, from real decoding only; `pairs`: of `statistics.pair_speed`."""
    passed = rows[rows["lossless"].eq(True)]  # speed of wrong output is no speed
    timed = passed[passed["ar_seconds"].notna() & passed["spec_seconds"].notna()]
    interval = statistics.speedup(passed, np.random.default_rng(seed), resamples)
    ratio = statistics.paired_difference(pairs, np.random.default_rng(seed), resamples)
    factor = Interval(
        math.exp(ratio.estimate), math.exp(ratio.low), math.exp(ratio.high), ratio.standard_error
    )
    checked = rows["lossless"].dropna()
    return (
        _interval("speedup", interval)
        | {"speedup_baseline": BASELINE}
        | {
            "speed_prompts": len(timed.drop_duplicates(CLUSTER)),
            "speed_seeds": int(timed["seed"].nunique()),
        }
        | _interval("speed_ratio", factor)
        | {"lossless": int(checked.sum()), "lossless_checked": len(checked)}
    )


def _interval(name: str, interval: Interval) -> Columns:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _variance(name: str, split: VarianceSplit) -> Columns:
    return {
        f"{name}_variance_prompt": split.prompt,
        f"{name}_variance_seed": split.seed,
        f"{name}_variance_residual": split.residual,
    }
