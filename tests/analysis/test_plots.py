"""Figures: what they draw is what the table says, and they can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import plots
from analysis.figures import FORMATS, draw
from analysis.load import Result, load
from analysis.style import CONTROL_COLOUR, looks
from analysis.survival import slot_curves
from analysis.table import summary_table
from dflash.model.errors import UserError

Make = Callable[..., Path]
ARMS = {"control": 0.0, "worse": -0.1, "leak": 0.2, "floor:unigram": -0.4}


@pytest.fixture
def result(make_result: Make) -> Result:
    return load("toy", make_result(arms=ARMS, benches={"gsm8k": 5, "mt_bench": 4}).parent)


@pytest.fixture
def table(result: Result) -> pd.DataFrame:
    return summary_table(result, resamples=200)


def spans(figure: Figure) -> set[tuple[float, float]]:
    """Horizontal two-point lines: the intervals."""
    lines = [line.get_xdata() for line in figure.axes[0].lines]
    return {(float(x[0]), float(x[1])) for x in lines if len(x) == 2}


def texts(figure: Figure) -> str:
    found = figure.findobj(mpl.text.Text)
    return "\n".join(text.get_text() for text in found)


def test_every_interval_of_the_table_is_drawn(table: pd.DataFrame) -> None:
    rows = table[table["answers"] == "all"]
    expected = set(zip(rows["tau_low"], rows["tau_high"], strict=True))
    assert expected <= spans(plots.tau_by_bench(table))
    pairs = rows[rows["difference"].notna()]
    expected = set(zip(pairs["difference_low"], pairs["difference_high"], strict=True))
    assert len(expected) == 6
    assert expected <= spans(plots.forest(table))


def test_prompts_stamps_and_verdicts_are_written(table: pd.DataFrame) -> None:
    assert "n = 9" in texts(plots.tau_by_bench(table))
    assert "leak (invalid)" in texts(plots.tau_by_bench(table))
    assert "gsm8k\nn = 5\ntoo few" in texts(plots.tau_by_bench(table))
    assert "SEED" not in texts(plots.tau_by_bench(table))
    forest = texts(plots.forest(table))
    assert "mt_bench (n = 4)" in forest
    assert "too few prompts" in forest


@pytest.mark.parametrize(("seeds", "stamp"), [([0], "SINGLE SEED"), ([0, 1], "TOO FEW SEEDS (2)")])
def test_few_seeds_are_stamped_above_the_figure(
    make_result: Make, seeds: list[int], stamp: str
) -> None:
    directory = make_result(arms=ARMS, benches={"gsm8k": 12}, seeds=seeds)
    figure = plots.tau_by_bench(summary_table(load("toy", directory.parent), resamples=50))
    assert stamp in texts(figure)
    assert "too few" not in texts(figure)


@pytest.mark.parametrize(
    ("plot", "column"),
    [
        (plots.survival_by_slot, "survival"),
        (plots.conditional_by_slot, "conditional"),
        (plots.marginal_by_slot, "marginal"),
    ],
)
def test_curves_are_the_measured_points(result: Result, plot: Callable, column: str) -> None:
    curves = slot_curves(result)
    figure = plot(curves)
    drawn = [line.get_ydata() for line in figure.axes[0].lines]
    for arm in ARMS:
        points = curves.loc[curves["arm"] == arm, column].to_numpy()
        assert any(
            len(line) == len(points) and np.array_equal(line, points, equal_nan=True)
            for line in drawn
        )
    assert len(figure.axes[0].collections) == len(ARMS)  # one band each
    assert "range of 3 seeds" in texts(figure)


def test_nothing_lies_outside_the_page(table: pd.DataFrame, result: Result) -> None:
    curves = slot_curves(result)
    for figure in (
        plots.tau_by_bench(table),
        plots.forest(table),
        plots.survival_by_slot(curves),
        plots.conditional_by_slot(curves),
        plots.marginal_by_slot(curves),
    ):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # settles the layout
        width, height = canvas.get_width_height()
        box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1


def test_arms_differ_in_grey_and_control_is_always_the_same() -> None:
    arms = ["a", "control", "b", "c", "d", "e", "f", "floor:unigram", "floor:ngram"]
    found = looks(arms, invalid=["c"])
    assert len({(look.marker, look.filled) for look in found.values()}) == len(arms)
    assert found["control"] == looks(["control"])["control"]
    assert [arm for arm, look in found.items() if look.colour == CONTROL_COLOUR] == ["control"]
    assert not found["c"].filled


def test_the_callers_rc_params_are_left_alone(table: pd.DataFrame) -> None:
    before = dict(mpl.rcParams)
    plots.tau_by_bench(table)
    assert dict(mpl.rcParams) == before


def drawn(directory: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    result = load(directory.name, directory.parent)
    return draw(result, summary_table(result, resamples=100), formats)


def test_figures_are_saved_in_three_formats_and_reproducible(make_result: Make) -> None:
    directory = make_result(seeds=[0], benches={"gsm8k": 3})
    paths = drawn(directory)
    assert {path.name for path in paths} == {
        f"{name}.{suffix}"
        for name in ("tau", "differences", "survival", "conditional", "marginal")
        for suffix in ("png", "svg", "pdf")
    }
    before = [path.read_bytes() for path in paths]
    drawn(directory)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in (directory / "figures").iterdir()) == sorted(
        path.name for path in paths
    )


def test_figures_that_the_tables_do_not_allow_are_left_out(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        frames["survival"] = frames["survival"].iloc[:0]

    directory = make_result(arms={"control": 0.0}, benches={"gsm8k": 3}, change=change)
    assert [path.name for path in drawn(directory, ["png"])] == ["tau.png"]
    table = summary_table(load("toy", directory.parent), resamples=100)
    with pytest.raises(UserError, match="nothing to plot"):
        plots.forest(table)
