"""Rows of the long tables from what replay and decoding return.

An entry's tables carry an empty ``run_id``: the same entry may serve runs of several experiments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Protocol

from dflash.data.loops import degenerate
from dflash.data.rollouts import Rollout
from dflash.decoding.rows import ReplayRow
from dflash.lab.results import Row, read_table, write_table
from dflash.metrics.acceptance import ratio

NAN = float("nan")
EVALUATION_TABLES = ("prompts", "steps", "survival")


class Labelled(Protocol):
    """Answers with the benchmark that each belongs to."""

    @property
    def temperature(self) -> float: ...
    def rollouts(self) -> list[Rollout]: ...
    def benches(self) -> list[str]: ...


def write_replay(directory: Path, replayed: Sequence[ReplayRow], answers: Labelled) -> None:
    """Write ``prompts``, ``steps`` and ``survival`` of one replay.

    Args:
        replayed: one row per rollout of ``answers``, in order.
    """
    rollouts, benches = answers.rollouts(), answers.benches()
    triples = list(zip(replayed, rollouts, benches, strict=True))
    prompts = [_prompt_row(*triple, answers.temperature) for triple in triples]
    steps = [row for triple in triples for row in _step_rows(*triple)]
    survival = [
        row
        for bench in dict.fromkeys(benches)
        for row in _survival_rows(bench, [r for r, _, b in triples if b == bench])
    ]
    write_table(directory / "prompts.parquet", "prompts", prompts)
    write_table(directory / "steps.parquet", "steps", steps)
    write_table(directory / "survival.parquet", "survival", survival)


def identity(rollout: Rollout, bench: str, source: str) -> Row:
    """The columns that say which prompt a row is about."""
    return {
        "run_id": "",
        "bench": bench,
        "prompt_id": rollout.prompt_id,
        "turn": rollout.turn,
        "source": source,
    }


def is_degenerate(rollout: Rollout) -> bool:
    """Does the target's answer loop, or was it cut because it did?"""
    return rollout.finish == "loop" or degenerate(rollout.answer_ids)


def read_evaluation(entry: Path, run_id: str) -> dict[str, list[Row]]:
    """The tables of an evaluation entry as rows of one run; an absent table is empty."""
    tables: dict[str, list[Row]] = {}
    for name in EVALUATION_TABLES:
        path = entry / f"{name}.parquet"
        rows = read_table(path) if path.is_file() else []
        tables[name] = [row | {"run_id": run_id} for row in rows]
    return tables


def _prompt_row(row: ReplayRow, rollout: Rollout, bench: str, temperature: float) -> Row:
    lengths = row.acceptance_lengths()
    return identity(rollout, bench, "replay") | {
        "domain": rollout.domain,
        "temperature": temperature,
        "width": row.width,
        "steps": len(lengths),
        "emitted": sum(lengths),
        "tau": ratio(sum(lengths), len(lengths)),
        "degenerate": is_degenerate(rollout),
        "device": "",
        "ar_seconds": NAN,
        "spec_seconds": NAN,
        "lossless": None,
        "first_divergence": None,
    }


def _step_rows(row: ReplayRow, rollout: Rollout, bench: str) -> Iterable[Row]:
    for step, (anchor, emitted) in enumerate(row.steps()):
        yield identity(rollout, bench, "replay") | {
            "step": step,
            "anchor": len(rollout.prompt_ids) + anchor,
            "accepted": int(row.match[anchor]),
            "emitted": emitted,
            "t_draft": NAN,
            "t_verify": NAN,
            "t_host": NAN,
        }


def _survival_rows(bench: str, rows: Sequence[ReplayRow]) -> Iterable[Row]:
    counts = reduce(add, (row.survival("all") for row in rows))
    alone = reduce(add, (row.marginals("all") for row in rows))
    columns = {
        "reached": counts.reached,
        "accepted": counts.accepted,
        "censored": counts.censored,
        "labelled": alone.labelled,
        "correct": alone.correct,
    }
    for index in range(len(counts.reached)):
        own = {name: int(values[index]) for name, values in columns.items()}
        yield {"run_id": "", "bench": bench, "slot": index + 1} | own
