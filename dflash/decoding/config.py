"""What the evaluation of a drafter may vary: the ``decode.*`` switches of design §5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from dflash.model.errors import UserError

__all__ = ["DecodeConfig"]


@dataclass(frozen=True)
class DecodeConfig:
    """Speculative decoding of an arm's drafter, and how much of it to run."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    verify: Literal["match"] = "match"
    proposal: Literal["argmax"] = "argmax"
    temperature: float = 0.0
    width: int | None = None  # tokens verified per step, anchor included; None: the block
    prompts_per_bench: int = 2  # prompts really decoded; replay always takes all of them
    new_tokens: int = 48

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UserError.of("decode.temperature", self.temperature, "0 or a positive number")
        if self.width is not None and self.width < 1:
            raise UserError.of("decode.width", self.width, "an integer of at least 1, or null")
        if self.prompts_per_bench < 0:
            raise UserError.of("decode.prompts_per_bench", self.prompts_per_bench, "0 or more")
        if self.new_tokens < 1:
            raise UserError.of("decode.new_tokens", self.new_tokens, "an integer of at least 1")
