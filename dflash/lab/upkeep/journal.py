"""The store's journal in words: what was built, when, where and how long it took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

JOURNAL = "journal.jsonl"


def journal_lines(root: Path) -> Iterator[str]:
    """One line per built entry, oldest first; a line that a kill cut short is shown as it is."""
    path = root / JOURNAL
    if not path.is_file():
        yield f"{path} does not exist: nothing was built yet"
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        yield _words(line)


def _words(line: str) -> str:
    try:
        told = json.loads(line)
        when = datetime.fromtimestamp(told["time"]).isoformat(sep=" ", timespec="seconds")
        return f"{when}  {told['name']}  {told['seconds']:.1f} s  {told['host']}:{told['pid']}"
    except (ValueError, TypeError, KeyError):
        return f"unreadable: {line}"
