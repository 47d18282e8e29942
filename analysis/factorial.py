"""Main effects and interactions of a grid: which switch matters, and does one need another.

For a factor with control level 0 and another level i the main effect is the mean, over all
combinations of the other factors, of tau(i) - tau(0). The interaction of two factors at i and j is
the mean, over the combinations of the rest, of tau(i, j) - tau(i, 0) - tau(0, j) + tau(0, 0): what
the two changes do together beyond the sum of what each does alone. Both are computed per answer
and seed first, so prompt and seed cancel as in every other comparison (design §10).

A contrast is no better than its cells: one negative control among those it weighs makes it invalid,
and one component that its factors touch and training never moved refuses it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.components import frozen
from analysis.load import Result
from analysis.statistics import CLUSTER, PAIRED_BY, RESAMPLES
from analysis.table import headline_source, measured
from analysis.verdict import verdict

MAIN, INTERACTION = "main effect", "interaction"
COLUMNS = [
    *("kind", "contrast", "estimate", "low", "high", "p", "p_holm", "prompts", "seeds"),
    *("invalid", "noise_floor"),
]
_TOGETHER = {"better": "together more than the sum", "worse": "together less than the sum"}
Cells = dict[str, dict[str, Any]]  # arm -> factor -> level


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of cells' means; the positive weights sum to 1 for a main effect, to 2 for
    an interaction.

    Attributes:
        factors: the switches it is about.
        weights: arm -> weight; 0 for a cell it leaves out.
    """

    kind: str
    name: str
    factors: tuple[str, ...]
    weights: dict[str, float]

    @property
    def arms(self) -> list[str]:
        """The cells it rests on."""
        return [arm for arm, weight in self.weights.items() if weight]


def grid_cells(result: Result) -> Cells:
    """Arm -> its levels, the control first; empty for an experiment without a grid."""
    runs = result.runs[result.runs["kind"] == "drafter"].drop_duplicates("arm")
    runs = runs.sort_values("control", ascending=False, kind="stable")
    levels = {run["arm"]: json.loads(run["levels"]) for run in runs.to_dict("records")}
    return {arm: own for arm, own in levels.items() if own}


def contrasts(result: Result, seed: int = 0, resamples: int = RESAMPLES) -> pd.DataFrame:
    """One row per main effect and two-way interaction of a full factorial, over all benches.

    Columns: COLUMNS and `verdict`. Only answers that every cell measured count, looping ones
    included. Holm's adjustment covers the main effects and the interactions apart, invalid ones
    excepted. Empty without a grid, or where a cell was not measured at all.
    """
    cells = grid_cells(result)
    wide = _measured_by_all(result, list(cells))
    if not cells or wide.empty or set(wide.columns) != set(cells):
        return pd.DataFrame(columns=[*COLUMNS, "verdict"])
    found = list(_contrasts(cells))
    table = pd.DataFrame([_estimate(result, wide, item, seed, resamples) for item in found])
    table["p_holm"] = np.nan
    for kind in table["kind"].unique():
        family = (table["kind"] == kind) & ~table["invalid"]
        table.loc[family, "p_holm"] = statistics.holm(table.loc[family, "p"].to_numpy())
    rows = table.to_dict("records")
    table["verdict"] = [
        _words(row, _unmoved(result, item)) for row, item in zip(rows, found, strict=True)
    ]
    return table[[*COLUMNS, "verdict"]]


def _measured_by_all(result: Result, arms: list[str]) -> pd.DataFrame:
    """tau [answer and seed, arm], rows without a gap."""
    rows = measured(result, headline_source(result))
    rows = rows[rows["arm"].isin(arms)]
    return rows.pivot(index=PAIRED_BY, columns="arm", values="tau").dropna()


def _contrasts(cells: Cells) -> Iterator[Contrast]:
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
                weights = {arm: sign * share for arm, sign in signs.items()}
                yield Contrast(kind, _name(wanted, base), chosen, weights)


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
    result: Result, wide: pd.DataFrame, contrast: Contrast, seed: int, resamples: int
) -> dict[str, Any]:
    difference = sum(weight * wide[arm] for arm, weight in contrast.weights.items())
    pairs = wide.index.to_frame(index=False).assign(difference=np.asarray(difference))
    interval = statistics.paired_difference(pairs, np.random.default_rng(seed), resamples)
    seeds = int(pairs["seed"].nunique())
    return {
        "kind": contrast.kind,
        "contrast": contrast.name,
        "interval": interval,
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "p": statistics.wilcoxon_p(pairs),
        "prompts": len(pairs.drop_duplicates(CLUSTER)),
        "seeds": seeds,
        "invalid": bool(result.runs.loc[_of(result, contrast), "invalid"].any()),
        "noise_floor": _noise_floor(result, contrast.kind, seeds),
    }


def _of(result: Result, contrast: Contrast) -> pd.Series:
    """Which runs belong to the cells of a contrast."""
    return result.runs["arm"].isin(contrast.arms)


def _noise_floor(result: Result, kind: str, seeds: int) -> float:
    """What nothing reaches: two means differ by noise, four by sqrt(2) times as much."""
    if result.floor is None:
        return math.nan
    bound = result.floor.bound("all", seeds)
    return bound * math.sqrt(2) if kind == INTERACTION else bound


def _unmoved(result: Result, contrast: Contrast) -> str:
    """What the factors of a contrast are about and training never moved, in words."""
    control = result.runs["control"]
    own = result.runs[_of(result, contrast) & ~control]
    return frozen(own, result.runs[control], contrast.factors)


def _words(row: dict[Any, Any], unmoved: str) -> str:
    words = verdict(
        row["interval"],
        row["p_holm"],
        row["prompts"],
        row["seeds"],
        invalid=row["invalid"],
        frozen=unmoved,
        noise_floor=row["noise_floor"],
    )
    return _TOGETHER.get(words, words) if row["kind"] == INTERACTION else words
