"""What the drafter is trained and judged on; the only place where these defaults are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from dflash.model.errors import UserError


@dataclass(frozen=True)
class DataConfig:
    """Prompts, the target's answers to them, and its features.

    Attributes:
        train: prompt set -> number of prompts whose answers train the drafter.
        eval: prompt set -> number of prompts that judge it; a name here is a benchmark.
        train_new_tokens: longest training answer, in tokens.
        eval_new_tokens: longest evaluation answer, in tokens.
        rollouts: ``shipped`` takes the repository's stored answers where they fit and makes the
            rest; ``fresh`` makes all of them.
        temperature: of the target while answering; 0 is greedy.
        feature_dtype: storage type of training features (evaluation always stores float32).
        mode: ``offline`` stores features on disk once, ``online`` runs the target every step.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    train: dict[str, int] = field(
        default_factory=lambda: {"gsm_symbolic": 80, "docstrings": 80, "written": 104}
    )
    eval: dict[str, int] = field(
        default_factory=lambda: {"gsm8k": 24, "humaneval": 24, "mt_bench": 12, "vicuna": 24}
    )
    train_new_tokens: int = 192
    eval_new_tokens: int = 128
    rollouts: Literal["shipped", "fresh"] = "shipped"
    temperature: float = 0.0
    seed: int = 0
    feature_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    mode: Literal["offline", "online"] = "offline"

    def __post_init__(self) -> None:
        for name in ("train", "eval"):
            sets: dict[str, int] = getattr(self, name)
            for key, count in sets.items():
                if count < 0:
                    raise UserError.of(f"data.{name}.{key}", count, "0 or a positive integer")
            if not any(sets.values()):
                raise UserError.of(f"data.{name}", sets, "at least one prompt set with prompts")
        for name in ("train_new_tokens", "eval_new_tokens"):
            if getattr(self, name) < 2:
                raise UserError.of(f"data.{name}", getattr(self, name), "an integer of at least 2")
        if self.temperature < 0:
            raise UserError.of("data.temperature", self.temperature, "0 or a positive number")
