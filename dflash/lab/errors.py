"""Exceptions in a table's cell."""

from __future__ import annotations


def one_line(error: BaseException) -> str:
    """``Type: text`` without line breaks, short enough for a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
