"""The draft vocabulary of ``vocab=top:<n>``: which rows of the target's head the drafter scores."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

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
