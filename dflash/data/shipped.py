"""Answers the repository carries, so that a newcomer's first run trains at once.

One parquet file per target, written by :func:`collect` from what the rollout stage made: the hash
of the rendered prompt ids, the raw greedy answer (before loops are cut) and the budget it was made
with. Prompts are not stored. A file is used only for the target whose fingerprint it names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash.target import Target
from dflash.target.files import replacing

FOLDER = "shipped"
Stored = dict[bytes, tuple[np.ndarray, int]]  # prompt key -> raw answer, its budget


def prompt_key(prompt_ids: np.ndarray) -> bytes:
    """16 bytes that name a rendered prompt."""
    return hashlib.blake2b(prompt_ids.astype("<i4").tobytes(), digest_size=16).digest()


def shipped_answers(target: Target, max_new_tokens: int) -> dict[bytes, np.ndarray]:
    """Stored answers by :func:`prompt_key` that fit a budget; empty for other targets.

    An answer serves a budget up to the one it was made with; a longer one only if it had stopped.
    """
    answers: dict[bytes, np.ndarray] = {}
    for fingerprint, stored in _files():
        if fingerprint != target.fingerprint:
            continue
        for key, (answer, budget) in stored.items():
            stopped = int(answer[-1]) in target.stop_token_ids
            if stopped or max_new_tokens <= budget:
                answers[key] = answer[:max_new_tokens]
    return answers


def collect(
    target: Target, made: Iterable[tuple[np.ndarray, np.ndarray]], budget: int, path: Path
) -> int:
    """Add ``(prompt_ids, raw answer_ids)`` pairs to a shipped file; returns its size in bytes.

    Of two answers to one prompt the one with the larger budget stays; a file of another target is
    replaced.
    """
    fingerprint, rows = _read(path) if path.exists() else (target.fingerprint, {})
    if fingerprint != target.fingerprint:
        rows = {}
    for prompt, answer in made:
        key = prompt_key(prompt)
        if key not in rows or rows[key][1] < budget:
            rows[key] = (answer, budget)
    keys = sorted(rows)
    table = pa.table(
        {
            "prompt": pa.array(keys, type=pa.binary(16)),
            "answer": pa.array([rows[key][0] for key in keys], type=pa.list_(pa.int32())),
            "budget": pa.array([rows[key][1] for key in keys], type=pa.int32()),
        }
    )
    marks = {"target": target.config.name, "fingerprint": target.fingerprint}
    with replacing(path) as place:
        pq.write_table(table.replace_schema_metadata(marks), place, compression="zstd")
    _files.cache_clear()
    return path.stat().st_size


@lru_cache(maxsize=1)
def _files() -> list[tuple[str, Stored]]:
    """Fingerprint and answers of every shipped file."""
    folder = resources.files("dflash.data") / FOLDER
    found = []
    for entry in sorted(folder.iterdir(), key=lambda item: item.name) if folder.is_dir() else []:
        if entry.name.endswith(".parquet"):
            with resources.as_file(entry) as path:
                found.append(_read(path))
    return found


def _read(path: Path) -> tuple[str, Stored]:
    table = pq.read_table(path)
    fingerprint = table.schema.metadata[b"fingerprint"].decode()
    columns = (table[name].to_pylist() for name in ("prompt", "answer", "budget"))
    return fingerprint, {
        key: (np.asarray(answer, dtype=np.int32), budget)
        for key, answer, budget in zip(*columns, strict=True)
    }
