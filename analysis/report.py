"""Everything that is derived from one experiment's tables, from one reading of them."""

from __future__ import annotations

from pathlib import Path

from analysis import figures, summary
from analysis.load import load
from analysis.table import summary_table


def write_report(directory: Path, pictures: bool = True) -> Path:
    """Write summary.csv, summary.md and, with `pictures`, figures/*.png; returns summary.md's path.

    Raises UserError as `load` does, or if there are `pictures` to draw and no arm was measured.
    """
    result = load(directory.name, directory.parent)
    table = summary_table(result)
    if pictures:
        figures.draw(result, table, formats=("png",))
    return summary.save(result, table)
