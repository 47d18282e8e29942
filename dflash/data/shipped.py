"""Answers the repository carries, so that a newcomer's first run trains at once.

One parquet file per target, written by :func:`collect` from what the rollout stage made: the hash
of the rendered prompt ids and the raw greedy answer (up to the budget, before loops are cut).
Prompts are not stored. A file is used only for the target whose fingerprint it names.
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

from dflash.data.files import write_parquet
from dflash.target import Target

FOLDER = "shipped"


def prompt_key(prompt_ids: np.ndarray) -> bytes:
    """16 bytes that name a rendered prompt."""
    return hashlib.blake2b(prompt_ids.astype("<i4").tobytes(), digest_size=16).digest()


def shipped_answers(target: Target, max_new_tokens: int) -> dict[bytes, np.ndarray]:
    """Stored answers by :func:`prompt_key` that fit a budget; empty for other targets.

    An answer serves a budget up to the one it was made with; a longer one only if it had stopped.
    """
    answers: dict[bytes, np.ndarray] = {}
    for fingerprint, budget, stored in _files():
        if fingerprint != target.fingerprint:
            continue
        for key, answer in stored.items():
            stopped = int(answer[-1]) in target.stop_token_ids
            if stopped or max_new_tokens <= budget:
                answers[key] = answer[:max_new_tokens]
    return answers


def collect(
    target: Target, raw: Iterable[tuple[np.ndarray, np.ndarray]], budget: int, path: Path
) -> int:
    """Write ``(prompt_ids, raw answer_ids)`` pairs as a shipped file; returns its size in bytes."""
    rows = {prompt_key(prompt): answer for prompt, answer in raw}
    keys = sorted(rows)
    table = pa.table(
        {
            "prompt": pa.array(keys, type=pa.binary(16)),
            "answer": pa.array([rows[key] for key in keys], type=pa.list_(pa.int32())),
        }
    )
    marks = {"target": target.config.name, "fingerprint": target.fingerprint, "budget": str(budget)}
    write_parquet(path, table.replace_schema_metadata(marks))
    return path.stat().st_size


@lru_cache(maxsize=1)
def _files() -> list[tuple[str, int, dict[bytes, np.ndarray]]]:
    folder = resources.files("dflash.data") / FOLDER
    found = []
    for entry in sorted(folder.iterdir(), key=lambda item: item.name) if folder.is_dir() else []:
        if entry.name.endswith(".parquet"):
            with resources.as_file(entry) as path:
                table = pq.read_table(path)
            marks = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
            answers = table["answer"].to_pylist()
            rows = {
                key: np.asarray(answer, dtype=np.int32)
                for key, answer in zip(table["prompt"].to_pylist(), answers, strict=True)
            }
            found.append((marks["fingerprint"], int(marks["budget"]), rows))
    return found
