"""Results of an experiment drawn from a known truth: prompts, seeds, residual, planted effects.

A cell's τ is 127 tokens over a whole number of steps, as an answer of 128 tokens has it. Before the
rounding it is base + prompt + effect * base, and what belongs to one arm and seed: a seed effect
and a residual per prompt. `SAMPLE` holds the standard deviations of results/sample (84 prompts,
three seeds: variance 97% prompts, 0% seeds, 3% residual).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.load import Result
from analysis.schema import STEPS, SURVIVAL

TOKENS = 127


@dataclass(frozen=True)
class Truth:
    """Standard deviations of τ; `own_prompt` is of one arm's liking for a prompt, in every seed."""

    base: float = 1.44
    prompt: float = 0.39
    seed: float = 0.0
    residual: float = 0.069
    own_prompt: float = 0.0


SAMPLE = Truth()
SEEDS_MATTER = Truth(seed=0.01)  # as much variance of the mean difference as the residual's
OWN_PROMPTS = Truth(own_prompt=0.1)


def tau(
    truth: Truth, effects: Mapping[str, float], prompts: int, seeds: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Arm -> τ [C, S]; effects: arm -> relative effect on τ."""
    shared = truth.base + truth.prompt * (rng.gamma(2.0, size=(prompts, 1)) - 2) / np.sqrt(2)
    drawn = {}
    for arm, effect in effects.items():
        own = truth.own_prompt * rng.normal(size=(prompts, 1))
        seed = truth.seed * rng.normal(size=(1, seeds))
        residual = truth.residual * rng.normal(size=(prompts, seeds))
        values = shared * (1 + effect) + own + seed + residual
        drawn[arm] = TOKENS / np.clip(np.rint(TOKENS / np.maximum(values, 1)), 1, TOKENS)
    return drawn


def result(drawn: Mapping[str, np.ndarray], **parts: object) -> Result:
    """The tables that an experiment with these τ leaves; the arm `control` is the control."""
    runs, prompts = [], []
    for arm, values in drawn.items():
        for seed in range(values.shape[1]):
            run_id = f"{arm}-s{seed}"
            runs.append(_run(arm, seed, run_id))
            prompts.append(_prompts(run_id, values[:, seed]))
    frames = {"runs": pd.DataFrame(runs), "prompts": pd.concat(prompts, ignore_index=True)}
    frames |= {
        name: pd.DataFrame(columns=list(columns))
        for name, columns in (("steps", STEPS), ("survival", SURVIVAL))
    }
    return Result("simulated", Path("simulated"), **frames, **parts)  # type: ignore[arg-type]


def _run(arm: str, seed: int, run_id: str) -> dict[str, object]:
    diff = {} if arm == "control" else {"drafter.attention.block": ["bidirectional", arm]}
    return {
        "arm": arm,
        "seed": seed,
        "run_id": run_id,
        "control": arm == "control",
        "invalid": False,
        "kind": "drafter",
        "config_diff": json.dumps(diff),
        "parameters": 1.0,
        "train_seconds": 1.0,
        **dict.fromkeys(("order_hash", "anchor_hash", "feature_hash", "init_hash"), str(seed)),
        "moved": "{}",
        "device": "cpu",
        "dtype": "float32",
        "target": "toy",
        "template_hash": "1",
        "code_version": "1",
        "status": "ok",
    }


def _prompts(run_id: str, values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run_id": run_id,
            "bench": "bench",
            "prompt_id": [f"p{index}" for index in range(len(values))],
            "turn": 0,
            "temperature": 0.0,
            "width": 5.0,
            "steps": np.rint(TOKENS / values).astype(int),
            "emitted": TOKENS,
            "tau": values,
            "degenerate": False,
            "source": "replay",
            "device": "",
            "spec_seconds": np.nan,
            "ar_seconds": np.nan,
            "lossless": pd.array([pd.NA] * len(values), dtype="boolean"),
        }
    )
