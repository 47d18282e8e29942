"""Atomic file writes for data: a reader sees the whole file or none."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write ``table`` beside ``path``, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, temporary, compression="zstd")
    os.replace(temporary, path)
