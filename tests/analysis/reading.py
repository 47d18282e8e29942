"""Write the summary of made-up results and read it back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from analysis.report import write_report

Make = Callable[..., Path]
write = partial(write_report, formats=(), resamples=300)


def read(directory: Path) -> tuple[str, pd.DataFrame]:
    text = write(directory).read_text(encoding="utf-8")
    return text, pd.read_csv(directory / "summary.csv")


def at(table: pd.DataFrame, arm: str, bench: str = "all", answers: str = "all") -> pd.Series:
    rows = table[(table["arm"] == arm) & (table["bench"] == bench) & (table["answers"] == answers)]
    assert len(rows) == 1
    return rows.iloc[0]
