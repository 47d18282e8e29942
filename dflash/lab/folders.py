"""Folders of results and what they say of their making.

experiment.yaml              the experiment as it was written
provenance/entries.json      run -> names of the store entries it uses; until it ends, those planned
provenance/plan.json         run -> names of the store entries that were planned
provenance/<diff_hash>.diff  what the working tree changed, see the columns of ``runs``
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

FOLDER = "provenance"
ENTRIES = "entries.json"
PLAN = "plan.json"
EXPERIMENT = "experiment.yaml"


def used_entries(directory: Path) -> dict[str, list[str]] | None:
    """Run -> names of its entries; None when an older version of the lab wrote the folder."""
    path = directory / FOLDER / ENTRIES
    if not path.is_file():
        return None
    return dict(json.loads(path.read_text(encoding="utf-8")))


def result_folders(results: Path) -> Iterator[Path]:
    """The experiments in a folder of results, finished or not."""
    for path in sorted(results.glob("*/config.yaml")):
        yield path.parent
