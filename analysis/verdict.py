"""What may be said about one comparison: the words of design §9."""

from __future__ import annotations

import pandas as pd

from analysis.markdown import number, with_interval
from analysis.statistics import Interval, smallest_detectable

MIN_PROMPTS = 10  # fewer say nothing about a benchmark (design §10)
MIN_SEEDS = 3  # no winner from a single A/B run, nor from two
ALPHA = 0.05


def verdict(
    difference: Interval,
    p_holm: float,
    prompts: int,
    seeds: int,
    *,
    invalid: bool = False,
    frozen: str = "",
) -> str:
    """The verdict on `arm - control`.

    prompts, seeds: how many the paired difference rests on. invalid: the arm is a negative
    control. frozen: which components the arm is about and training never moved
    (`analysis.components.frozen`).
    'better' and 'worse' need both an interval that excludes 0 and a Holm-adjusted p below 5%.
    """
    if invalid:
        return "invalid"
    if frozen:
        return f"refused ({frozen})"
    if prompts == 0:
        return "not compared (no answers paired with the control)"
    if prompts < MIN_PROMPTS:
        return f"too few prompts ({prompts})"
    if seeds == 1:
        return "single seed"
    if seeds < MIN_SEEDS:
        return f"too few seeds ({seeds})"
    if p_holm < ALPHA and difference.low > 0:
        return "better"
    if p_holm < ALPHA and difference.high < 0:
        return "worse"
    detectable = smallest_detectable(difference.standard_error)
    return f"no evidence of a difference (smallest detectable: {detectable:.2g})"


def conclude(table: pd.DataFrame) -> list[str]:
    """One sentence per arm about all benches together, written from a `summary_table`."""
    rows = table[(table["bench"] == "all") & (table["answers"] == "all")]
    return [_sentence(row) for row in rows[rows["kind"] == "drafter"].to_dict("records")]


def _sentence(row: dict) -> str:
    if row["control"] and row["prompts"]:
        tau = with_interval(row["tau"], row["tau_low"], row["tau_high"], ".3f")
        plural = "" if row["seeds"] == 1 else "s"
        return (
            f"The control emits {tau} tokens per target call "
            f"({row['prompts']} prompts, {row['seeds']} seed{plural})."
        )
    if not row["paired_prompts"]:
        return f"{row['arm']}: {row['verdict']}."
    difference = with_interval(
        row["difference"], row["difference_low"], row["difference_high"], "+.3f"
    )
    return (
        f"{row['arm']}: {row['verdict']}. Its paired difference to the control is {difference}, "
        f"Holm-adjusted p {number(row['p_holm'], '.2g')}."
    )
