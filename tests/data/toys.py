"""A toy target in memory, and answers made up for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dflash.data.rollouts import Rollout
from dflash.target import Target, TargetConfig
from tests.decoding.toys import toy_target

VOCAB, STOP, MASK = 12, 9, 11


def small_target(vocab: int = VOCAB, stop: tuple[int, ...] = (STOP,), **toy: Any) -> Target:
    """A random model of four layers; no tokenizer."""
    config = TargetConfig("toy", "memory", mask_token_id=MASK, device="cpu")
    return Target(config, toy_target(vocab=vocab, **toy), None, "toy-fingerprint", stop)


def made_up(shapes: list[tuple[int, int]], vocab: int = VOCAB - 1, seed: int = 0) -> list[Rollout]:
    """Random token ids of the given (prompt, answer) lengths."""
    generator = np.random.default_rng(seed)

    def ids(length: int) -> np.ndarray:
        return generator.integers(0, vocab, length).astype(np.int32)

    return [
        Rollout(f"toy/{index}", "toy", 0, ids(prompt), ids(answer), "length")
        for index, (prompt, answer) in enumerate(shapes)
    ]
