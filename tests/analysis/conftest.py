"""A generator of synthetic results: the exact files an experiment writes, with planted effects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

BENCHES = {"gsm8k": 12, "humaneval": 12, "mt_bench": 10}
BLOCK_SIZE = 8


def _run(experiment: str, arm: str, seed: int, **changes: object) -> dict[str, object]:
    floor = arm.startswith("floor:")
    row: dict[str, object] = {
        "experiment": experiment,
        "arm": arm,
        "seed": seed,
        "run_id": f"{arm}-{seed}",
        "control": arm == "control",
        "invalid": arm == "leak",
        "kind": "floor" if floor else "drafter",
        "config_diff": json.dumps({} if arm == "control" or floor else {"drafter.x": arm}),
        "levels": "{}",
        "parameters": np.nan if floor else 1.2e7,
        "steps": np.nan if floor else 400.0,
        "tokens": np.nan if floor else 1e5,
        "train_seconds": np.nan if floor else 180.0,
        "final_loss": np.nan if floor else 3.1,
        "order_hash": "" if floor else f"order of {seed}",
        "anchor_hash": "" if floor else f"anchors of {seed}",
        "feature_hash": "" if floor else f"features of {seed}",
        "init_hash": "" if floor else f"values of {seed}",
        "moved": "{}" if floor else json.dumps({"q_norm": 0.02, "fc": 0.01, "layers.0": 0.05}),
        "device": "cpu (2 threads)",
        "dtype": "float32",
        "target": "toy",
        "template_hash": "abc",
        "code_version": "0.1.0",
        "packages": "{}",
        "machine": "{}",
        "commit": "unknown",
        "diff_hash": "",
        "entry": "",
        "status": "ok",
        "error": "",
    }
    return row | changes


def _answers(
    run: Mapping[str, object], shift: float, benches: Mapping[str, int], rng: np.random.Generator
) -> tuple[list[dict], list[dict], list[dict]]:
    """Replay rows, their steps and survival of one run; difficulty belongs to the prompt."""
    prompts, steps, survival = [], [], []
    for bench, count in benches.items():
        reached = np.zeros(BLOCK_SIZE, dtype=int)
        accepted_at = np.zeros(BLOCK_SIZE, dtype=int)
        for index in range(count):
            turns = 2 if bench == "mt_bench" else 1
            difficulty = np.random.default_rng([index, len(bench)]).beta(3, 3)
            for turn in range(turns):
                rate = float(np.clip(difficulty + shift, 0.02, 0.97))
                accepted = np.minimum(rng.geometric(1 - rate, size=60) - 1, BLOCK_SIZE - 1)
                for slot in range(1, BLOCK_SIZE):
                    reached[slot] += int((accepted >= slot - 1).sum())
                    accepted_at[slot] += int((accepted >= slot).sum())
                where = {
                    "run_id": run["run_id"],
                    "bench": bench,
                    "prompt_id": f"{bench}/{index}",
                    "turn": turn,
                }
                emitted = accepted + 1
                prompts.append(_prompt(where, bench, index, emitted))
                anchors = 30 + np.concatenate([[0], np.cumsum(emitted)[:-1]])
                steps += [
                    where
                    | {"source": "replay", "step": step, "anchor": int(anchor)}
                    | {"accepted": int(kept), "emitted": int(kept) + 1}
                    | {"t_draft": np.nan, "t_verify": np.nan, "t_host": np.nan}
                    for step, (anchor, kept) in enumerate(zip(anchors, accepted, strict=True))
                ]
        survival += [
            {"run_id": run["run_id"], "bench": bench, "slot": slot}
            | {"reached": int(reached[slot]), "accepted": int(accepted_at[slot]), "censored": slot}
            | {"labelled": int(reached[1]), "correct": int(accepted_at[slot])}
            for slot in range(1, BLOCK_SIZE)
        ]
    return prompts, steps, survival


def _prompt(where: Mapping[str, object], bench: str, index: int, emitted: np.ndarray) -> dict:
    return {
        **where,
        "domain": {"gsm8k": "math", "humaneval": "code"}.get(bench, "chat"),
        "temperature": 0.0,
        "width": BLOCK_SIZE,
        "steps": len(emitted),
        "emitted": int(emitted.sum()),
        "tau": float(emitted.sum() / len(emitted)),
        "degenerate": index == 0,
        "source": "replay",
        "device": "",
        "ar_seconds": np.nan,
        "spec_seconds": np.nan,
        "lossless": pd.NA,
        "first_divergence": pd.NA,
    }


def _decoded(prompts: Sequence[dict]) -> list[dict]:
    """The first four prompts of every bench, decoded for real: same acceptance, now with clocks."""
    rows = []
    for row in prompts:
        if int(str(row["prompt_id"]).rsplit("/", 1)[1]) < 4:
            seconds = {
                "device": "cpu (2 threads)",
                "ar_seconds": row["emitted"] * 0.05,
                "spec_seconds": row["steps"] * 0.06,
            }
            rows.append({**row, "source": "decode", "lossless": True} | seconds)
    return rows


@pytest.fixture
def make_result(tmp_path: Path) -> Callable[..., Path]:
    """make_result(arms={"control": 0.0, "worse": -0.1}, ...) writes a result, returns its folder.

    arms: arm -> shift of the acceptance rate ("leak" is invalid, "floor:<name>" has seed -1).
    failed: arm -> seeds that failed. change: called with the frames before they are written.
    """

    def make(
        arms: Mapping[str, float] = {"control": 0.0, "worse": -0.1},
        seeds: Sequence[int] = (0, 1, 2),
        benches: Mapping[str, int] = BENCHES,
        failed: Mapping[str, Sequence[int]] | None = None,
        change: Callable[[dict[str, pd.DataFrame]], object] = lambda frames: None,
        experiment: str = "toy",
    ) -> Path:
        runs, prompts, steps, survival = [], [], [], []
        for arm, shift in arms.items():
            for seed in [-1] if arm.startswith("floor:") else seeds:
                run = _run(experiment, arm, seed)
                runs.append(run)
                if seed in (failed or {}).get(arm, ()):
                    run |= {"status": "failed", "error": "RuntimeError: out of memory\nmore"}
                    continue
                rng = np.random.default_rng([seed + 1, len(arm)])
                rows = _answers(run, shift, benches, rng)
                prompts += [*rows[0], *_decoded(rows[0])]
                steps += rows[1]
                survival += rows[2]
        frames = {
            "runs": pd.DataFrame(runs, columns=list(_run("", "", 0))),
            "prompts": pd.DataFrame(prompts),
            "steps": pd.DataFrame(steps),
            "survival": pd.DataFrame(survival),
        }
        change(frames)
        directory = tmp_path / "results" / experiment
        directory.mkdir(parents=True)
        for name, frame in frames.items():
            frame.to_parquet(directory / f"{name}.parquet")
        return directory

    return make
