"""Markdown tables that also line up in a terminal, and numbers as they appear in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOTHING = "–"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table, columns padded to equal width; the first column left, the others as given."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def number(value: float, spec: str) -> str:
    """`value` formatted, or a dash when it was not measured."""
    return NOTHING if math.isnan(value) else format(value, spec)


def with_interval(value: float, low: float, high: float, spec: str) -> str:
    """value [low, high]; without the interval where there is none."""
    if math.isnan(value):
        return NOTHING
    if math.isnan(low):
        return format(value, spec)
    return f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"
