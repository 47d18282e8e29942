"""How big a paired difference is, in units that compare across targets and benchmarks.

The rows are those of `statistics.pair`; the unit is the prompt, whose difference is the mean over
its turns and seeds. All are descriptions of these prompts, beside the raw difference, which the
verdict rests on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.statistics import CLUSTER, RESAMPLES, Interval, bootstrap_ratio, cells


@dataclass(frozen=True)
class Shares:
    """Shares of the prompts on which the arm is better than, equal to and worse than the control;
    they add up to 1.
    """

    better: float
    equal: float
    worse: float


def relative_difference(
    pairs: pd.DataFrame, rng: np.random.Generator, resamples: int = RESAMPLES
) -> Interval:
    """Difference of the mean taus in percent of the control's, bootstrapped like the difference.

    A ratio of sums, 100 * sum(arm - control) / sum(control): prompts with a small tau count for no
    more than others. Numerator and denominator are drawn together.
    """
    return bootstrap_ratio(
        *cells(pairs, 100 * pairs["difference"], pairs["tau_control"]), rng, resamples
    )


def standardised(pairs: pd.DataFrame) -> float:
    """Cohen's d_z: mean over prompts of the difference, over its standard deviation (n - 1).

    Says how consistent the difference is from prompt to prompt, not how large. NaN with fewer
    than two prompts or when all differ by the same. Source: Cohen (1988), section 2.3.5.
    """
    means = _by_prompt(pairs)
    if len(means) < 2 or np.ptp(means) == 0:
        return float("nan")
    return float(means.mean() / means.std(ddof=1))


def rank_biserial(pairs: pd.DataFrame) -> float:
    """Matched-pairs rank-biserial correlation, -1 to 1: the size that belongs to the Wilcoxon p.

    (W+ - W-) / (W+ + W-) with W the sums of the ranks of |difference| over prompts where the arm is
    better (+) and worse (-); prompts without a difference drop out. 0 if none differs, NaN without
    pairs. Source: Kerby (2014).
    """
    means = _by_prompt(pairs)
    if len(means) == 0:
        return float("nan")
    means = means[means != 0]
    if len(means) == 0:
        return 0.0
    ranks = stats.rankdata(np.abs(means))
    return float((ranks * np.sign(means)).sum() / ranks.sum())


def shares(pairs: pd.DataFrame) -> Shares:
    """On how many of the prompts the arm is better, equal and worse; NaN without pairs."""
    signs = np.sign(_by_prompt(pairs))
    if len(signs) == 0:
        return Shares(np.nan, np.nan, np.nan)
    return Shares(*(float(np.mean(signs == sign)) for sign in (1, 0, -1)))


def _by_prompt(pairs: pd.DataFrame) -> np.ndarray:
    """Mean difference of each prompt, [C]."""
    return pairs.groupby(CLUSTER)["difference"].mean().to_numpy()
