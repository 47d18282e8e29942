"""Everything that is derived from one experiment's tables, from one reading of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis import figures, noise, summary
from analysis.factorial import contrasts
from analysis.floor import keep
from analysis.load import load
from analysis.statistics import RESAMPLES
from analysis.table import summary_table


def write_report(
    directory: str | Path,
    formats: Sequence[str] = ("png",),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Path:
    """Write summary.csv, summary.md and, in each of `formats`, the figures of results/<experiment>;
    the noise floor too, if that is what the experiment measured. A copy of the floor that verdicts
    were held against stays in the folder.

    Returns the path of summary.md. Raises UserError if the tables are missing, malformed or empty,
    or if there are `formats` and no arm was measured.
    """
    directory = Path(directory)
    result = load(directory.name, directory.parent)
    noise.save(result, seed, resamples)
    if "setting" in result.config:
        result = replace(result, floor=keep(directory, result.config, result.runs))
    table = summary_table(result, seed, resamples)
    if formats:
        figures.draw(result, table, formats)
    return summary.save(result, table, contrasts(result, seed, resamples))
