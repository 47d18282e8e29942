"""Save the figures of one experiment beside its tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from analysis import plots
from analysis.load import Result
from analysis.style import RC
from analysis.survival import slot_curves
from dflash.target.files import replacing

FORMATS = ("png", "svg", "pdf")


def draw(result: Result, table: pd.DataFrame, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write figures into the result's folder; `table` is the `summary_table` of `result`.

    Returns the files written: `tau` always, `differences` if some arm is paired with a control,
    `survival`, `conditional` and `marginal` if there are survival counters. Raises UserError if no
    arm was measured.
    """
    curves = slot_curves(result)
    figures = {"tau": plots.tau_by_bench(table)}
    if table["difference"].notna().any():
        figures["differences"] = plots.forest(table)
    if len(curves):
        figures["survival"] = plots.survival_by_slot(curves)
        figures["conditional"] = plots.conditional_by_slot(curves)
        figures["marginal"] = plots.marginal_by_slot(curves)
    return [
        path
        for name, figure in figures.items()
        for path in save(figure, result.directory / "figures" / name, formats)
    ]


def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `figure` as stem.<format> for each format, atomically; returns the paths."""
    paths = [stem.with_name(f"{stem.name}.{extension}") for extension in formats]
    for path in paths:
        with replacing(path) as temporary, mpl.rc_context(RC):
            figure.savefig(temporary, metadata=_undated(path.suffix))
    return paths


def _undated(suffix: str) -> dict[str, None]:
    """Metadata without the time, so that equal figures are equal files."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
