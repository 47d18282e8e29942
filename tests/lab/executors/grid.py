"""A grid of twelve cells, and its tables without what depends on the machine and the moment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from dflash.cli import main
from dflash.lab.results import TABLES, read_table

TWELVE = (
    "  bare: {drafter.attention.qk_norm: none}\n"
    "  causal: {drafter.attention.block: causal}\n"
    "  leaky: {drafter.attention.leak: 1}"
)
MORE = f"{TWELVE}\n  blind: {{drafter.attention.context: none}}"
SEEDS = "seeds=[0,1,2]"
CELLS = 12
# Seconds, and the device's name, which counts threads.
VARYING = ("train_seconds", "ar_seconds", "spec_seconds", "t_draft", "t_verify", "t_host", "device")


def tables(directory: Path) -> dict[str, str]:
    """Table -> its rows as text."""
    rows = {name: read_table(directory / f"{name}.parquet") for name in TABLES}
    return {
        name: "\n".join(
            str({key: value for key, value in row.items() if key not in VARYING}) for row in table
        )
        for name, table in rows.items()
    }


def of_seed(found: Mapping[str, str], seed: int) -> dict[str, str]:
    """The rows of one seed, and of the floors."""
    marks = (f"-s{seed}'", "'run_id': 'floor-")
    return {
        name: "\n".join(row for row in text.splitlines() if any(mark in row for mark in marks))
        for name, text in found.items()
    }


def assert_built_once(journal: list[dict[str, object]]) -> None:
    """Every entry has one line in the journal."""
    names = [str(line["name"]) for line in journal]
    assert sorted(names) == sorted(set(names))


def command(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """The body of a process: one ``dflash`` command in silence."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        raise SystemExit(main(words))
