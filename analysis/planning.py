"""What the next run needs: how many prompts or seeds halve the smallest detectable difference."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.statistics import VarianceSplit


@dataclass(frozen=True)
class Plan:
    """Sizes that halve the standard error, each with the other size as it was.

    `inf`: no number is enough, because what the other size leaves is too much already. NaN: the
    run does not tell (no variance, fewer than two prompts, or one seed for `seeds`).
    """

    prompts: float
    seeds: float


def halving(split: VarianceSplit, prompts: int, seeds: int) -> Plan:
    """Sizes for half the standard error of a mean over `prompts` x `seeds` cells.

    Its square is prompt / prompts + seed / seeds + residual / (prompts * seeds): the two-way random
    effects model of `statistics.variance_split`, whose components `split` holds. The smallest
    detectable difference is proportional to the standard error. With one seed the prompt component
    holds the residual and nothing is known of seeds; four times the prompts are then needed.
    """
    if math.isnan(split.prompt):
        return Plan(math.nan, math.nan)
    seed = 0.0 if math.isnan(split.seed) else split.seed
    residual = 0.0 if math.isnan(split.residual) else split.residual
    quarter = (split.prompt / prompts + seed / seeds + residual / (prompts * seeds)) / 4
    return Plan(
        prompts=_needed(split.prompt + residual / seeds, quarter - seed / seeds),
        seeds=_needed(seed + residual / prompts, quarter - split.prompt / prompts)
        if seeds > 1
        else math.nan,
    )


def _needed(variance: float, allowed: float) -> float:
    """Smallest n with variance / n <= allowed."""
    if variance == allowed == 0:
        return math.nan
    # the tolerance keeps 4 * n from becoming 4 * n + 1 by rounding
    return math.ceil(variance / allowed * (1 - 1e-9)) if allowed > 0 else math.inf
