from __future__ import annotations

import copy
import gc

import torch
from torch import Tensor, nn

from dflash.model.mask_embedding import MASK_ROWS
from dflash.model.memory import MadeOf


def test_made_once_for_every_version_of_a_weight_and_forgotten_with_it() -> None:
    made: list[float] = []

    def double(weight: Tensor) -> Tensor:
        made.append(float(weight.sum()))
        return weight * 2

    doubles = MadeOf(double)
    one, other = (nn.Parameter(torch.full((3,), value)) for value in (1.0, 5.0))
    with torch.inference_mode():
        first = doubles(one)
    assert doubles(one) is first
    assert not first.is_inference()  # training may use what decoding made
    assert not first.requires_grad
    doubles(other)
    with torch.no_grad():
        one += 1
    assert doubles(one).tolist() == [4.0, 4.0, 4.0]
    assert made == [3.0, 15.0, 6.0]
    assert copy.deepcopy(doubles)(other).tolist() == [10.0, 10.0, 10.0]
    assert len(doubles._known) == 2
    del one
    gc.collect()
    assert len(doubles._known) == 1


def test_the_mean_mask_is_not_computed_at_every_step() -> None:
    embedding = nn.Embedding(50, 8)
    row = MASK_ROWS["mean"](embedding, None, None)
    assert MASK_ROWS["mean"](embedding, None, None) is row
    torch.testing.assert_close(row, embedding.weight.mean(dim=0))
