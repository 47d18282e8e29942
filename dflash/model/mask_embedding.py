"""What a mask slot is fed: one vector, made from the target's embedding or learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from dflash.model.errors import UserError

# (the target's embedding, mask token id or None, the learned vector or None) -> [H]
MaskRow = Callable[[nn.Module, int | None, Tensor | None], Tensor]
# table -> (its version, its mean); entries go with their tables
_MEANS: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


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
    table = _table(embedding)
    version, row = _MEANS.get(table, (None, None))
    if version != table._version:
        with torch.inference_mode(False), torch.no_grad():  # training may use what decoding made
            row = table.float().mean(dim=0).to(table.dtype)
        _MEANS[table] = table._version, row
    return cast(Tensor, row)


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
