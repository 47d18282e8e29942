"""The draft vocabulary of ``vocab=top:<n>``: which rows of the target's head the drafter scores."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dflash.model.errors import UserError


def vocabulary_hash(token_ids: Tensor) -> str:
    """SHA-256 of the ids as little-endian 64-bit integers: two tables of one shape never mix."""
    return hashlib.sha256(token_ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()


def checked_vocabulary(token_ids: Tensor, size: int, vocab_size: int) -> Tensor:
    """``token_ids`` as the ``[size]`` table of draft row to token id.

    Raises:
        UserError: wrong number of ids, an id twice, or an id outside the target's vocabulary.
    """
    ids = torch.as_tensor(token_ids, dtype=torch.long)
    if ids.shape != (size,):
        raise UserError.of("vocab token_ids.shape", tuple(ids.shape), f"({size},)")
    if ids.unique().numel() != size:
        raise UserError.of("vocab token_ids", "an id that occurs twice", "distinct ids")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        worst = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise UserError.of("vocab token_ids", worst, f"ids from 0 to {vocab_size - 1}")
    return ids


@dataclass(frozen=True, eq=False)
class HeadRows:
    """The rows of a frozen head that score a draft vocabulary.

    Attributes:
        weight: ``[V_draft, H]``.
        bias: ``[V_draft]`` or None.
        source: the head's weight they were copied from, at ``version``.
    """

    weight: Tensor
    bias: Tensor | None
    source: Tensor
    version: int

    @classmethod
    def gather(cls, head: nn.Module, index: Tensor) -> HeadRows:
        """Copy the rows ``index`` of ``head``."""
        lent: Any = head
        bias = getattr(lent, "bias", None)
        with torch.inference_mode(False):  # training may use what a replay has gathered
            weight = lent.weight.detach()[index]
            bias = None if bias is None else bias.detach()[index]
        return cls(weight, bias, lent.weight, lent.weight._version)

    def are_of(self, head: nn.Module) -> bool:
        """Are they still what ``head`` holds?"""
        weight: Any = head.weight
        return self.source is weight and self.version == weight._version
