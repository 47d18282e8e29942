"""The figures of an experiment. Each function returns a matplotlib Figure and writes nothing.

Points are measurements, bars and bands are 95% intervals unless the figure says otherwise, straight
lines only join neighbouring slots: nothing is smoothed. The number of prompts is written on each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.style import COLUMN_WIDTH, INVALID, RC, STAMP_COLOUR, Look, looks
from analysis.table import ALL_ANSWERS
from analysis.verdict import MIN_PROMPTS, MIN_SEEDS, stamps
from dflash.model.errors import UserError


def _styled(plot: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw inside the lab's rcParams and leave the caller's alone."""

    @wraps(plot)
    def inside(*args: object, **kwargs: object) -> Figure:
        with mpl.rc_context(RC):
            return plot(*args, **kwargs)

    return inside


def _looks_of(frame: pd.DataFrame) -> dict[str, Look]:
    return looks(frame["arm"].unique(), invalid=frame.loc[frame["invalid"], "arm"].unique())


def _label(arm: str, frame: pd.DataFrame) -> str:
    return arm + INVALID if frame.loc[frame["arm"] == arm, "invalid"].any() else arm


def _interval(axes: Axes, y: float, row: dict, name: str, look: Look, size: float = 4) -> None:
    """A point with its horizontal interval, which is left out where it could not be estimated."""
    if not np.isnan(row[f"{name}_low"]):
        axes.plot([row[f"{name}_low"], row[f"{name}_high"]], [y, y], "-", color=look.colour, lw=1.1)
    axes.plot(
        row[name], y, look.marker, color=look.colour, mfc=look.face, ms=size, mew=0.9, zorder=3
    )


def _legend(figure: Figure, axes: Axes, frame: pd.DataFrame, lines: bool) -> None:
    """A legend above the axes, as many columns as fit the width."""
    handles = []
    for arm, look in _looks_of(frame).items():
        style = look.line if lines else "none"
        (handle,) = axes.plot(
            [], [], marker=look.marker, ls=style, color=look.colour, mfc=look.face, mew=0.9
        )
        handle.set_label(_label(arm, frame))
        handles.append(handle)
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(COLUMN_WIDTH * 16 / (longest + 7))))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, columnspacing=1.2)


@_styled
def tau_by_bench(table: pd.DataFrame, answers: str = ALL_ANSWERS) -> Figure:
    """Tau of every arm and floor on every bench, with intervals; from a `summary_table`."""
    rows = table[(table["answers"] == answers) & table["tau"].notna()]
    _require(rows, "no arm has a τ to draw")
    benches, arms = list(rows["bench"].unique()), list(rows["arm"].unique())
    step = 0.8 / len(arms)
    height = 0.7 + len(benches) * (0.12 + 0.13 * len(arms)) + 0.14 * np.ceil(len(arms) / 3)
    figure = Figure(figsize=(COLUMN_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    styles = _looks_of(rows)
    for row in rows.to_dict("records"):
        y = benches.index(row["bench"]) - 0.4 + step * (arms.index(row["arm"]) + 0.5)
        _interval(axes, y, row, "tau", styles[row["arm"]])
    for boundary in range(1, len(benches)):
        axes.axhline(boundary - 0.5, color="#bbbbbb", lw=0.5)
    axes.axvline(1, color="#555555", lw=0.8, ls=(0, (4, 2)))
    counts = rows.groupby("bench")["prompts"].max()
    few = ["\ntoo few" if counts[bench] < MIN_PROMPTS else "" for bench in benches]
    axes.set_yticks(
        range(len(benches)),
        [f"{bench}\nn = {counts[bench]}{stamp}" for bench, stamp in zip(benches, few, strict=True)],
    )
    axes.set_ylim(len(benches) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("τ with 95% interval (dashed: no speculation)")
    _stamp_seeds(axes, rows)
    _legend(figure, axes, rows, lines=False)
    return figure


def _stamp_seeds(axes: Axes, rows: pd.DataFrame) -> None:
    """Say above the axes that the drafters rest on too few seeds."""
    seeds = rows.loc[(rows["kind"] == "drafter") & (rows["bench"] == "all"), "seeds"]
    if len(seeds) and seeds.min() < MIN_SEEDS:
        text = stamps(MIN_PROMPTS, int(seeds.min()))[0].upper()
        axes.set_title(text, loc="right", color=STAMP_COLOUR, fontweight="bold")


@_styled
def forest(table: pd.DataFrame, answers: str = ALL_ANSWERS) -> Figure:
    """Paired differences to the control with intervals and verdicts; from a `summary_table`."""
    rows = table[(table["answers"] == answers) & table["difference"].notna()]
    _require(rows, "no arm is paired with a control")
    styles = _looks_of(table[table["answers"] == answers])
    arms = list(rows["arm"].unique())
    height = 0.55 + 0.165 * (len(rows) + 1.2 * len(arms))
    figure = Figure(figsize=(COLUMN_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    ticks: list[float] = []
    labels: list[str] = []
    headings: list[int] = []
    y = 0.0
    for arm in arms:
        headings.append(len(ticks))
        ticks.append(y)
        labels.append(_label(arm, rows))
        for row in rows[rows["arm"] == arm].to_dict("records"):
            y += 1
            ticks.append(y)
            labels.append(f"{row['bench']} (n = {row['paired_prompts']})")
            size = 5.5 if row["bench"] == "all" else 3.5
            _interval(axes, y, row, "difference", styles[arm], size)
            verdict = row["verdict"].split(" (")[0].replace(" of a difference", "")
            axes.annotate(
                verdict, (1.02, y), xycoords=axes.get_yaxis_transform(), va="center", fontsize=6.5
            )
        y += 1.3
    axes.axvline(0, color="#000000", lw=0.8)
    axes.set_yticks(ticks, labels)
    for heading in headings:
        axes.get_yticklabels()[heading].set_fontweight("bold")
    axes.set_ylim(y - 0.7, -0.7)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("τ − control's τ, paired, 95% interval")
    return figure


@_styled
def survival_by_slot(curves: pd.DataFrame) -> Figure:
    """P(slots 1..k all accepted) against k, with bands; from `slot_curves`."""
    return _by_slot(curves, "survival", "P(first k slots accepted)")


@_styled
def conditional_by_slot(curves: pd.DataFrame) -> Figure:
    """P(slot k accepted | slots 1..k-1 accepted) against k, with bands; from `slot_curves`."""
    return _by_slot(curves, "conditional", "P(slot k accepted | all before)")


@_styled
def marginal_by_slot(curves: pd.DataFrame) -> Figure:
    """P(slot k right), whatever came before it, against k, with bands; from `slot_curves`."""
    return _by_slot(curves, "marginal", "P(slot k right)")


def _by_slot(curves: pd.DataFrame, name: str, ylabel: str) -> Figure:
    _require(curves, "no survival counters were written")
    figure = Figure(figsize=(COLUMN_WIDTH, 2.7), layout="constrained")
    axes = figure.subplots()
    for arm, look in _looks_of(curves).items():
        rows = curves[curves["arm"] == arm]
        slots = rows["slot"].to_numpy()
        low, high = rows[f"{name}_low"].to_numpy(), rows[f"{name}_high"].to_numpy()
        axes.fill_between(slots, low, high, color=look.colour, alpha=0.18, lw=0)
        axes.plot(
            slots, rows[name], marker=look.marker, ls=look.line, color=look.colour, mfc=look.face,
            mew=0.9,
        )  # fmt: skip
    axes.set_ylim(0, None if name == "survival" else 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    anchors = curves.loc[curves["slot"] == curves["slot"].min(), "reached"].max()
    axes.set_xlabel(f"slot k (n ≤ {anchors:,} anchors per arm)\nband: {_band(curves)}")
    axes.set_ylabel(ylabel)
    _legend(figure, axes, curves, lines=True)
    return figure


def _band(curves: pd.DataFrame) -> str:
    seeds = curves["seeds"].max()
    if seeds == 1:
        return "95% binomial, anchors taken as independent"
    text = f"range of {seeds} seeds"
    return f"{text}; 95% binomial with one" if curves["seeds"].min() == 1 else text


def _require(rows: pd.DataFrame, problem: str) -> None:
    if rows.empty:
        raise UserError(f"nothing to plot: {problem}")
