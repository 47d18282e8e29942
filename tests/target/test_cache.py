from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicCache

from dflash.target.cache import ROOM, roomy_cache


def states(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 3)


def test_equals_the_plain_cache_through_growth_selection_and_crop():
    plain, roomy = DynamicCache(), roomy_cache()
    rows = 3
    for step, new in enumerate([5, 1, 1, ROOM, 1, 2 * ROOM, 1, 1]):
        for layer in range(2):
            pair = states(rows, new)
            expected, got = plain.update(*pair, layer), roomy.update(*pair, layer)
            assert torch.equal(expected[0], got[0])
            assert torch.equal(expected[1], got[1])
        assert roomy.get_seq_length() == plain.get_seq_length()
        if step == 2:
            keep = torch.tensor([2, 0])
            rows = len(keep)
            plain.batch_select_indices(keep)
            roomy.batch_select_indices(keep)
        if step == 4:
            plain.crop(-3)
            roomy.crop(-3)


def test_appending_within_the_room_copies_nothing():
    cache = roomy_cache()
    keys, _ = cache.update(*states(1, 5), 0)
    again, _ = cache.update(*states(1, 1), 0)
    assert again.data_ptr() == keys.data_ptr()


@pytest.mark.parametrize("new", [1, ROOM + 1])
def test_reset_forgets(new):
    cache = roomy_cache()
    cache.update(*states(1, 5), 0)
    cache.reset()
    pair = states(1, new)
    keys, values = cache.update(*pair, 0)
    assert torch.equal(keys[..., -new:, :], pair[0])
    assert torch.equal(values[..., -new:, :], pair[1])
