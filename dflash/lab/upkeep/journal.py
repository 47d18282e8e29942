"""The store's journal in words: what was built, when, where and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from dflash.lab.journal import journal_lines


def log_lines(root: Path) -> Iterator[str]:
    """One line per built entry, oldest first; a line that was cut short is shown as it is."""
    nothing = True
    for line, told in journal_lines(root):
        nothing = False
        if told is None:
            yield f"unreadable: {line}"
            continue
        when = datetime.fromtimestamp(told["time"]).isoformat(sep=" ", timespec="seconds")
        yield f"{when}  {told['name']}  {told['seconds']:.1f} s  {told['host']}:{told['pid']}"
    if nothing:
        yield f"{root}: nothing was built yet"
