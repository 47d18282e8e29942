"""Intervals and tests for acceptance lengths (design §10): pure functions, randomness passed in.

The unit is the prompt: steps are nested in prompts, all turns of one conversation are one unit,
seeds cross prompts. Every quantity here is a ratio of sums over cells [prompt, seed], which makes
one bootstrap serve all:

* mean tau    = sum of per-answer tau / number of answers (the headline number)
* pooled tau  = sum of emitted tokens / sum of steps (what a serving counter reports)
* difference  = sum of per-answer differences / number of pairs
* speedup     = sum of autoregressive seconds / sum of speculative seconds, over the same answers
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

CLUSTER = ["bench", "prompt_id"]
PAIRED_BY = ["bench", "prompt_id", "turn", "seed"]
RESAMPLES = 10_000
_CELLS_AT_ONCE = 4_000_000  # bounds the memory of a bootstrap at about 100 MB


@dataclass(frozen=True)
class Interval:
    """An estimate, its 95% bootstrap interval and standard error; NaN where not estimable.

    The standard error is on the normal scale: 1.96 of it are half an interval, however few the
    degrees of freedom.
    """

    estimate: float
    low: float
    high: float
    standard_error: float


NOTHING = Interval(np.nan, np.nan, np.nan, np.nan)


def cells(
    rows: pd.DataFrame, numerator: pd.Series, denominator: pd.Series
) -> tuple[np.ndarray, np.ndarray]:
    """Sum both series over each prompt and seed: two arrays [C, S]; a cell that was not measured
    holds 0 / 0.
    """
    prompts = rows.groupby(CLUSTER, sort=True).ngroup().to_numpy()
    seeds, levels = pd.factorize(rows["seed"], sort=True)
    shape = (int(prompts.max(initial=-1)) + 1, len(levels))
    top, bottom = np.zeros(shape), np.zeros(shape)
    np.add.at(top, (prompts, seeds), numerator.to_numpy(dtype=float))
    np.add.at(bottom, (prompts, seeds), denominator.to_numpy(dtype=float))
    return top, bottom


def _weights(rng: np.random.Generator, resamples: int, units: int) -> np.ndarray:
    """How often each unit is drawn in each resample: [R, units].

    units - 1 draws from units, not units: that makes the bootstrap variance of a mean the
    unbiased one, which matters for three seeds (Rao and Wu, 1988). A single unit is a constant,
    not a sample.
    """
    if units == 1:
        return np.ones((resamples, 1))
    picks = rng.integers(units, size=(resamples, units - 1))
    flat = (picks + units * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * units).reshape(resamples, units).astype(float)


def bootstrap_ratio(
    top: np.ndarray, bottom: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval:
    """sum(top) / sum(bottom) with a 95% bootstrap interval over prompts and, where there are
    several, seeds.

    top, bottom: [C, S] sums per prompt and seed. The shape is the bootstrap's, the width that of a
    t interval: the drawn ratios are stretched about the estimate until 1.96 of their standard
    deviations are t standard errors (`clustered_error`). Left alone, three seeds drawn with
    replacement are far too narrow when seeds matter (81% in the worst case below) and too wide
    when only the residual does. In simulation (benchmarks/verdicts.py; 12 to 200 prompts, 3 and 5
    seeds) A/A intervals cover 0 in 92 to 97% of cases where prompts or seeds lead, and in 94 to 99%
    where the residual does. One prompt gives an estimate without an interval.
    """
    total = bottom.sum()
    if total == 0:
        return NOTHING
    estimate = float(top.sum() / total)
    if len(top) < 2:
        return Interval(estimate, np.nan, np.nan, np.nan)
    draws = resampled_ratios(top, bottom, rng, resamples)
    spread = draws.std()
    if spread > 0:
        error, freedom = clustered_error(top, bottom)
        quantiles = stats.t.ppf(0.975, freedom) / stats.norm.ppf(0.975)
        draws = estimate + (draws - estimate) * quantiles * error / spread
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(estimate, float(low), float(high), float(draws.std()))


def resampled_ratios(
    top: np.ndarray, bottom: np.ndarray, rng: np.random.Generator, resamples: int
) -> np.ndarray:
    """sum(top) / sum(bottom) of at most `resamples` draws with replacement, [R].

    top, bottom: [C, S]. Prompts and seeds are drawn independently of each other (crossed, Owen
    2007). A draw that misses every measured cell of a ragged design is left out.
    """
    prompts, seeds = top.shape
    chunk = max(1, _CELLS_AT_ONCE // prompts)
    draws = []
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        by_prompt = _weights(rng, count, prompts)  # [R, C]
        by_seed = _weights(rng, count, seeds)  # [R, S]
        drawn_top = ((by_prompt @ top) * by_seed).sum(axis=1)
        drawn_bottom = ((by_prompt @ bottom) * by_seed).sum(axis=1)
        measured = drawn_bottom > 0
        draws.append(drawn_top[measured] / drawn_bottom[measured])
    return np.concatenate(draws)


def clustered_error(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float]:
    """Standard error of sum(top) / sum(bottom), clustered by prompt and seed, and its degrees of
    freedom.

    top, bottom: [C, S] with C > 1. The variance is the largest of three: clustered by prompt, by
    seed, and by both (their sum less the interaction, which both hold); so it is never below what
    either says alone (Cameron, Gelbach and Miller, 2011). Degrees of freedom are Satterthwaite's,
    of C - 1 and S - 1: where seeds lead, three of them leave two. Exact for a balanced mean, to
    first order for a ratio.
    """
    prompts, seeds = top.shape
    influence = (top - bottom * (top.sum() / bottom.sum())) / bottom.sum()
    by_prompt = float((influence.sum(axis=1) ** 2).sum()) * prompts / (prompts - 1)
    if seeds == 1:
        return float(np.sqrt(by_prompt)), prompts - 1
    by_seed = float((influence.sum(axis=0) ** 2).sum()) * seeds / (seeds - 1)
    rest = influence - influence.mean(axis=1, keepdims=True) - influence.mean(axis=0)
    both = by_prompt + by_seed - float((rest**2).sum()) * top.size / ((prompts - 1) * (seeds - 1))
    variance = max(by_prompt, by_seed, both)
    if variance == 0:
        return 0.0, prompts - 1
    freedom = variance**2 / (by_prompt**2 / (prompts - 1) + by_seed**2 / (seeds - 1))
    return float(np.sqrt(variance)), freedom


def mean_tau(rows: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES) -> Interval:
    """Mean over answers and seeds of tau. rows: bench, prompt_id, seed, tau; answers without a
    step (NaN) drop out.
    """
    rows = rows[rows["tau"].notna()]
    return bootstrap_ratio(*cells(rows, rows["tau"], rows["tau"].notna()), rng, resamples)


def pooled_tau(
    rows: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval:
    """Emitted tokens per step over all answers and seeds. rows: bench, prompt_id, seed, emitted,
    steps.
    """
    return bootstrap_ratio(*cells(rows, rows["emitted"], rows["steps"]), rng, resamples)


def speedup(rows: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES) -> Interval:
    """Autoregressive seconds over speculative seconds for the same tokens; rows not timed (NaN)
    drop out.
    """
    rows = rows[rows["ar_seconds"].notna() & rows["spec_seconds"].notna()]
    return bootstrap_ratio(*cells(rows, rows["ar_seconds"], rows["spec_seconds"]), rng, resamples)


def pair(arm: pd.DataFrame, control: pd.DataFrame) -> pd.DataFrame:
    """Answers measured in both, matched by bench, prompt, turn and seed: columns of PAIRED_BY,
    tau_arm, tau_control, difference (arm minus control).
    """
    columns = [*PAIRED_BY, "tau"]
    pairs = arm[columns].merge(
        control[columns], on=PAIRED_BY, suffixes=("_arm", "_control"), validate="one_to_one"
    )
    pairs["difference"] = pairs["tau_arm"] - pairs["tau_control"]
    return pairs[pairs["difference"].notna()].reset_index(drop=True)


def pair_speed(arm: pd.DataFrame, control: pd.DataFrame) -> pd.DataFrame:
    """Answers that both decoded on equal devices with the target's own output, matched as in
    `pair`: columns of PAIRED_BY, device and difference = log(control's seconds / arm's seconds),
    above 0 where the arm is faster.
    """
    keys = [*PAIRED_BY, "device"]
    columns = [*keys, "spec_seconds"]
    fine = [rows.loc[rows["lossless"].eq(True), columns].dropna() for rows in (arm, control)]
    pairs = fine[0].merge(fine[1], on=keys, suffixes=("_arm", "_control"), validate="one_to_one")
    seconds = pairs["spec_seconds_control"] / pairs["spec_seconds_arm"]
    return pairs.assign(difference=np.log(seconds.astype(float)))


def paired_difference(
    pairs: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval:
    """Mean difference over the pairs of `pair` or `pair_speed`, bootstrapped over prompts and
    seeds.
    """
    return bootstrap_ratio(
        *cells(pairs, pairs["difference"], pairs["difference"].notna()), rng, resamples
    )


def wilcoxon_p(pairs: pd.DataFrame) -> float:
    """Two-sided Wilcoxon signed-rank p on per-prompt mean differences (over turns and seeds).

    1 when no prompt differs, NaN without pairs. Exact up to 50 prompts without ties or zeros, the
    normal approximation otherwise (scipy's own choice would be a slow permutation test).
    """
    means = pairs.groupby(CLUSTER)["difference"].mean().to_numpy()
    if len(means) == 0:
        return float("nan")
    if not np.any(means):
        return 1.0
    tied = not means.all() or len(np.unique(np.abs(means))) < len(means)
    method = "approx" if tied or len(means) > 50 else "exact"
    return float(stats.wilcoxon(means, method=method).pvalue)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm-adjusted p values [n]; NaN marks a comparison that was not made and stays NaN."""
    p_values = np.asarray(p_values, dtype=float)
    adjusted = np.full(p_values.shape, np.nan)
    made = ~np.isnan(p_values)
    if made.any():
        adjusted[made] = multipletests(p_values[made], method="holm")[1]
    return adjusted


def smallest_detectable(standard_error: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest true difference that a two-sided test at `alpha` finds with probability `power`."""
    return float((stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)) * standard_error)


@dataclass(frozen=True)
class VarianceSplit:
    """Variance components of a cell [prompt, seed]. With one seed only `prompt` is known, and it
    holds the residual too.
    """

    prompt: float
    seed: float
    residual: float


def variance_split(rows: pd.DataFrame, column: str = "tau") -> VarianceSplit:
    """Two-way random-effects split of `column` into prompt, seed and residual, by the usual mean
    squares.

    rows: bench, prompt_id, seed and `column`, turns averaged. Uses the prompts that every seed
    measured; components below 0 become 0.
    """
    rows = rows[rows[column].notna()]
    top, bottom = cells(rows, rows[column], rows[column].notna())
    whole = (bottom > 0).all(axis=1)
    table = top[whole] / bottom[whole]
    prompts, seeds = table.shape  # [C, S]
    if prompts < 2:
        return VarianceSplit(np.nan, np.nan, np.nan)
    if seeds < 2:
        return VarianceSplit(float(table.var(ddof=1)), np.nan, np.nan)
    by_prompt, by_seed = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_prompt[:, None] - by_seed[None, :] + table.mean()
    residual = float((rest**2).sum() / ((prompts - 1) * (seeds - 1)))
    prompt = max(0.0, float(by_prompt.var(ddof=1)) - residual / seeds)
    seed = max(0.0, float(by_seed.var(ddof=1)) - residual / prompts)
    return VarianceSplit(prompt, seed, residual)
