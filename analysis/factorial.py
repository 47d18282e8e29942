"""Main effects and interactions of a grid: which switch matters, and does one need another.

For a factor with control level 0 and another level i the main effect is the mean, over all
combinations of the other factors, of tau(i) - tau(0). The interaction of two factors at i and j is
the mean, over the combinations of the rest, of tau(i, j) - tau(i, 0) - tau(0, j) + tau(0, 0): what
the two changes do together beyond the sum of what each does alone. Both are computed per answer
and seed first, so prompt and seed cancel as in every other comparison (design §10).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.load import Result
from analysis.statistics import CLUSTER, PAIRED_BY, RESAMPLES
from analysis.table import headline_source, measured
from analysis.verdict import verdict

MAIN, INTERACTION = "main effect", "interaction"
COLUMNS = ["kind", "contrast", "estimate", "low", "high", "p", "p_holm", "prompts", "seeds"]
_TOGETHER = {"better": "together more than the sum", "worse": "together less than the sum"}
Cells = dict[str, dict[str, Any]]  # arm -> factor -> level


def grid_cells(result: Result) -> Cells:
    """Arm -> its levels, the control first; empty for an experiment without a grid."""
    runs = result.runs[result.runs["kind"] == "drafter"].drop_duplicates("arm")
    runs = runs.sort_values("control", ascending=False, kind="stable")
    levels = {run["arm"]: json.loads(run["levels"]) for run in runs.to_dict("records")}
    return {arm: own for arm, own in levels.items() if own}


def contrasts(result: Result, seed: int = 0, resamples: int = RESAMPLES) -> pd.DataFrame:
    """One row per main effect and two-way interaction of a full factorial, over all benches.

    Columns: COLUMNS and `verdict`. Only answers that every cell measured count. Holm's adjustment
    covers the main effects and the interactions apart. Empty without a grid, or where a cell was
    not measured at all.
    """
    cells = grid_cells(result)
    wide = _measured_by_all(result, list(cells))
    if not cells or wide.empty or set(wide.columns) != set(cells):
        return pd.DataFrame(columns=[*COLUMNS, "verdict"])
    records = [
        {"kind": kind, "contrast": name} | _estimate(wide, weights, seed, resamples)
        for kind, name, weights in _weights(cells)
    ]
    table = pd.DataFrame(records)
    table["p_holm"] = np.nan
    for kind in table["kind"].unique():
        family = table["kind"] == kind
        table.loc[family, "p_holm"] = statistics.holm(table.loc[family, "p"].to_numpy())
    table["verdict"] = [_words(dict(row)) for row in table.to_dict("records")]
    return table[[*COLUMNS, "verdict"]]


def _measured_by_all(result: Result, arms: list[str]) -> pd.DataFrame:
    """tau [answer and seed, arm], rows without a gap."""
    rows = measured(result, headline_source(result))
    rows = rows[rows["arm"].isin(arms)]
    return rows.pivot(index=PAIRED_BY, columns="arm", values="tau").dropna()


def _weights(cells: Cells) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(kind, name, arm -> weight) of every contrast; the weights of one side sum to one."""
    base = next(iter(cells.values()))  # the control's levels
    factors = list(base)
    others = {
        factor: list({json.dumps(own[factor]): own[factor] for own in cells.values()}.values())[1:]
        for factor in factors
    }
    for order, kind in ((1, MAIN), (2, INTERACTION)):
        for chosen in itertools.combinations(factors, order):
            for levels in itertools.product(*(others[factor] for factor in chosen)):
                wanted = dict(zip(chosen, levels, strict=True))
                signs = {arm: _sign(own, wanted, base) for arm, own in cells.items()}
                share = 2**order / sum(abs(sign) for sign in signs.values())
                yield kind, _name(wanted, base), {a: sign * share for a, sign in signs.items()}


def _sign(own: dict[str, Any], wanted: dict[str, Any], base: dict[str, Any]) -> int:
    """+1 and -1 of a cell in a contrast: minus for every factor at the control's level."""
    sign = 1
    for factor, level in wanted.items():
        sign *= 1 if own[factor] == level else -1 if own[factor] == base[factor] else 0
    return sign


def _name(wanted: dict[str, Any], base: dict[str, Any]) -> str:
    parts = [f"{factor}: {base[factor]} → {level}" for factor, level in wanted.items()]
    return " × ".join(parts)


def _estimate(
    wide: pd.DataFrame, weights: dict[str, float], seed: int, resamples: int
) -> dict[str, Any]:
    difference = sum(weight * wide[arm] for arm, weight in weights.items())
    pairs = wide.index.to_frame(index=False).assign(difference=np.asarray(difference))
    interval = statistics.paired_difference(pairs, np.random.default_rng(seed), resamples)
    return {
        "interval": interval,
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "p": statistics.wilcoxon_p(pairs),
        "prompts": len(pairs.drop_duplicates(CLUSTER)),
        "seeds": int(pairs["seed"].nunique()),
    }


def _words(row: dict[Hashable, Any]) -> str:
    words = verdict(row["interval"], row["p_holm"], row["prompts"], row["seeds"])
    return _TOGETHER.get(words, words) if row["kind"] == INTERACTION else words
