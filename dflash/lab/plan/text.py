"""Quantities, tables and headings of a plan as plain text."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 100  # columns
PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


def scaled(value: float, unit: str) -> str:
    """Three digits with a decimal prefix: ``1.23 TFLOP``."""
    if value < 1:
        return f"{value:.3g} {unit}".strip()
    power = min(int(math.log10(value)) // 3, len(PREFIXES) - 1)
    if power + 1 < len(PREFIXES) and float(f"{value:.3g}") >= 1000 ** (power + 1):
        power += 1
    number = float(f"{value / 1000**power:.3g}")
    return f"{number:g} {PREFIXES[power]}{unit}".strip()


def size(value: float) -> str:
    """Bytes in decimal units, as disks are sold and quotas set."""
    return scaled(value, "B")


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever reads best."""
    for unit, length, least in (("days", 86400, 172800), ("h", 3600, 3600), ("min", 60, 60)):
        if seconds >= least:
            value = seconds / length
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{seconds:.3g} s"


def heading(title: str) -> list[str]:
    """A blank line and a title."""
    return ["", title.upper()]


def paragraph(name: str, text: str) -> list[str]:
    """A labelled text, wrapped under itself."""
    pad = " " * 14
    words = " ".join(text.split())
    return textwrap.wrap(words, WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=pad)


def note(text: str) -> list[str]:
    """A remark under a table."""
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows under headings; the first column is left-aligned, the others are right-aligned."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style=None)
    for index, column in enumerate(columns):
        if index == 0:
            grid.add_column(column, overflow="fold")  # a name is never cut
        else:
            grid.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH - 2, color_system=None, markup=False, emoji=False)
    console.print(grid)
    return [f"  {line}".rstrip() for line in stream.getvalue().splitlines()]
