"""What may be said about one comparison: the words of design §9."""

from __future__ import annotations

import numpy as np
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
    noise_floor: float = float("nan"),
) -> str:
    """The verdict on `arm - control`.

    prompts, seeds: how many the paired difference rests on. invalid: the arm is a negative
    control. frozen: which components the arm is about and training never moved
    (`analysis.components.frozen`). noise_floor: what a change without effect reaches
    (`analysis.floor.Floor.bound`), NaN where that was not measured.
    'better' and 'worse' need an interval that excludes 0, a Holm-adjusted p below 5% and a
    difference above the noise floor. The smallest difference that this run would have found with
    80% power is at least the noise floor; Holm's adjustment is not part of it.
    """
    if invalid:
        return "invalid"
    if frozen:
        return f"refused ({frozen})"
    if prompts == 0:
        return "not compared (no answers paired with the control)"
    too_few = stamps(prompts, seeds)
    if too_few:
        return too_few[0]
    if difference.estimate == difference.low == difference.high == 0:
        return "no evidence of a difference (all paired answers are equal)"
    if p_holm < ALPHA and not difference.low <= 0 <= difference.high:
        if abs(difference.estimate) < noise_floor:
            return f"below the noise floor ({noise_floor:.2g})"
        return "better" if difference.estimate > 0 else "worse"
    detectable = np.fmax(smallest_detectable(difference.standard_error), noise_floor)
    return f"no evidence of a difference (smallest detectable: {detectable:.2g})"


def stamps(prompts: int, seeds: int) -> list[str]:
    """What a number on so few prompts or seeds carries in every table; empty when it is enough."""
    found = [f"too few prompts ({prompts})"] if prompts < MIN_PROMPTS else []
    if seeds == 1:
        return [*found, "single seed"]
    return [*found, f"too few seeds ({seeds})"] if seeds < MIN_SEEDS else found


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
