"""What a mask slot is fed: one vector, made from the target's embedding or learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from dflash.model.errors import UserError
from dflash.model.memory import MadeOf

# (the target's embedding, mask token id or None, the learned vector or None) -> [H]
MaskRow = Callable[[nn.Module, int | None, Tensor | None], Tensor]
_MEAN = MadeOf(lambda table: table.float().mean(dim=0).to(table.dtype))


def reserved(embedding: nn.Module, mask_token_id: int | None, learned: Tensor | None) -> Tensor:
    """The embedding of an unused token (the paper's choice).

    Raises:
        UserError: the config names no mask token.
    """
    if mask_token_id is None:
        raise UserError.of("mask_token_id", None, "an unused token id when mask_embedding=reserved")
    return embedding(torch.tensor(mask_token_id, device=_table(embedding).device))


def mean(embedding: nn.Module, mask_token_id: int | None, learned: Tensor | None) -> Tensor:
    """The mean over the vocabulary, computed once for a table: it is asked for at every step."""
    return _MEAN(_table(embedding))


def zero(embedding: nn.Module, mask_token_id: int | None, learned: Tensor | None) -> Tensor:
    """No signal but the position."""
    return torch.zeros_like(_table(embedding)[0])


def trained(embedding: nn.Module, mask_token_id: int | None, learned: Tensor | None) -> Tensor:
    """The drafter's own parameter ``mask_embed``."""
    assert learned is not None  # the drafter registers it exactly when this row is chosen
    return learned


def _table(embedding: nn.Module) -> Tensor:
    return cast(Tensor, embedding.weight)


MASK_ROWS: dict[str, MaskRow] = {
    "reserved": reserved,
    "learned": trained,
    "mean": mean,
    "zero": zero,
}
