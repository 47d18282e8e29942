"""The long tables of an experiment (design §9): one schema, written whole or not at all.

Everything else, from τ with its interval to a plot, derives from these four files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash.model.errors import UserError
from dflash.target.files import replacing

SCHEMA_VERSION = 3
VERSION_KEY = b"dflash_schema_version"

Row = dict[str, Any]

RUNS = pa.schema(
    [
        ("experiment", pa.string()),
        ("arm", pa.string()),
        ("seed", pa.int64()),
        ("run_id", pa.string()),
        ("control", pa.bool_()),
        ("invalid", pa.bool_()),
        ("kind", pa.string()),  # drafter | floor
        ("config_diff", pa.string()),  # JSON: dotted name -> [control's value, arm's value]
        ("levels", pa.string()),  # JSON: factor of the grid -> value; {} outside a grid
        ("parameters", pa.int64()),
        ("steps", pa.int64()),
        ("tokens", pa.int64()),
        ("train_seconds", pa.float64()),
        ("final_loss", pa.float64()),
        ("order_hash", pa.string()),  # of the sequences fed, step by step; empty for floors
        ("anchor_hash", pa.string()),
        ("feature_hash", pa.string()),  # empty where no features are read
        ("init_hash", pa.string()),  # of every parameter's starting value
        ("moved", pa.string()),  # JSON: component -> largest |change| of its parameters
        ("device", pa.string()),
        ("dtype", pa.string()),
        ("target", pa.string()),
        ("template_hash", pa.string()),
        ("code_version", pa.string()),
        ("packages", pa.string()),  # JSON: package -> version
        ("machine", pa.string()),  # JSON: processor, cores, memory, GPUs
        ("commit", pa.string()),  # of the source tree; "unknown" outside a checkout
        ("diff_hash", pa.string()),  # names provenance/<diff_hash>.diff; empty for a clean tree
        ("entry", pa.string()),  # the run in the store and in trackers; empty where none trained
        ("status", pa.string()),  # ok | failed
        ("error", pa.string()),
    ]
)
PROMPTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("bench", pa.string()),
        ("prompt_id", pa.string()),
        ("domain", pa.string()),
        ("turn", pa.int64()),
        ("temperature", pa.float64()),
        ("width", pa.int64()),
        ("steps", pa.int64()),
        ("emitted", pa.int64()),
        ("tau", pa.float64()),
        ("degenerate", pa.bool_()),
        ("source", pa.string()),  # replay | decode
        ("device", pa.string()),  # that decoded, and whose seconds they are; empty in replay
        ("ar_seconds", pa.float64()),
        ("spec_seconds", pa.float64()),
        ("lossless", pa.bool_()),  # null where it was not checked
        ("first_divergence", pa.int64()),  # index into the answer; null when there is none
    ]
)
STEPS = pa.schema(
    [
        ("run_id", pa.string()),
        ("bench", pa.string()),
        ("prompt_id", pa.string()),
        ("turn", pa.int64()),
        ("source", pa.string()),
        ("step", pa.int64()),
        ("anchor", pa.int64()),  # absolute position
        ("accepted", pa.int64()),
        ("emitted", pa.int64()),
        ("t_draft", pa.float64()),
        ("t_verify", pa.float64()),
        ("t_host", pa.float64()),
    ]
)
SURVIVAL = pa.schema(
    [
        ("run_id", pa.string()),
        ("bench", pa.string()),
        ("slot", pa.int64()),
        ("reached", pa.int64()),
        ("accepted", pa.int64()),
        ("censored", pa.int64()),
        ("labelled", pa.int64()),
        ("correct", pa.int64()),
    ]
)
TABLES = {"runs": RUNS, "prompts": PROMPTS, "steps": STEPS, "survival": SURVIVAL}


def write_table(path: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one table atomically, its columns in the schema's order and type.

    Raises:
        ValueError: a row has a column too many or too few.
    """
    schema = TABLES[name]
    expected = set(schema.names)
    for row in rows:
        if row.keys() != expected:
            wrong = sorted(row.keys() ^ expected)
            raise ValueError(f"a row of {name} differs from the schema in {wrong}")
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    table = table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()})
    with replacing(path) as place:
        pq.write_table(table, place, write_page_checksum=True)


def read_table(path: Path) -> list[Row]:
    """The rows of a table as plain data.

    Raises:
        UserError: the file is of another schema version, or not readable.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} is not readable: {' '.join(str(error).split())}") from None
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise UserError(f"{path} has schema version {version}, this lab reads {SCHEMA_VERSION}")
    rows: list[Row] = table.to_pylist()
    return rows


def write_results(directory: Path, tables: Mapping[str, Sequence[Row]]) -> None:
    """Write the four tables; ``runs`` last, as it lists what the others hold."""
    for name in ("survival", "steps", "prompts", "runs"):
        write_table(directory / f"{name}.parquet", name, tables[name])
