"""The store's journal: one line for every entry that was ever built, appended and never changed."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JOURNAL = "journal.jsonl"
FIELDS = {"time", "host", "pid", "name", "seconds"}


def note(root: Path, name: str, seconds: float) -> None:
    """Append a line by a single write, which the kernel keeps in one piece.

    Args:
        seconds: that the last, uninterrupted part of the work took.
    """
    facts = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
    line = json.dumps(facts | {"name": name, "seconds": round(seconds, 3)}) + "\n"
    descriptor = os.open(root / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read_journal(root: Path) -> list[dict[str, Any]]:
    """What was built, in order: time (Unix), host, pid, name, seconds.

    A process that is killed right after an entry became visible leaves no line for it.
    """
    return [told for _, told in journal_lines(root) if told is not None]


def journal_lines(root: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Every line with what it says; None for one that a full disk or a crash cut short."""
    path = root / JOURNAL
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            told = json.loads(line)
        except json.JSONDecodeError:
            told = None
        yield line, told if isinstance(told, dict) and told.keys() >= FIELDS else None
