"""Which target model, and how it is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from dflash.model.errors import UserError

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class TargetConfig:
    """A frozen target language model.

    ``source`` is ``package:<distribution>`` (weights inside an installed Python package), a local
    directory, or a Hugging Face hub id. ``thinking`` is passed to the chat template explicitly, on
    or off, because a template's own default differs between families and changes acceptance.
    ``mask_token_id`` stays ``None`` only for work that never drafts.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    source: str
    revision: str | None = None
    mask_token_id: int | None = None
    thinking: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    device: str = "auto"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", self.name):
            raise UserError.of("target.name", self.name, "letters, digits, '_', '-' and '.'")
        if not self.source.strip():
            raise UserError.of(
                "target.source", self.source, "package:<name>, a directory or a hub id"
            )
        if self.dtype not in DTYPES:
            raise UserError.of("target.dtype", self.dtype, ", ".join(DTYPES))
        if self.attn_implementation not in ATTENTIONS:
            raise UserError.of(
                "target.attn_implementation", self.attn_implementation, ", ".join(ATTENTIONS)
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UserError.of("target.device", self.device, "auto, cpu, cuda, cuda:<n>")
