from __future__ import annotations

import pytest
import torch

from dflash.data.features import OnlineFeatures
from dflash.data.shared import SharedFeatures
from tests.data.toys import made_up, small_target

TAPS = [(0, 2), (2,), (3, 0)]


@pytest.fixture(scope="module")
def target():
    return small_target()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_reader_gets_its_own_taps_bit_for_bit(target, dtype):
    rollouts = made_up([(3, 5), (2, 7), (4, 2)])
    shared = SharedFeatures(target, rollouts, TAPS, dtype, kept=2)
    for taps in TAPS:
        reader = shared.reader(taps)
        alone = OnlineFeatures(target, rollouts, taps, dtype)
        for index in (2, 0, 1, 1):
            row = reader.row(index)
            assert row.dtype == alone.row(index).dtype
            assert torch.equal(row, alone.row(index))


def test_a_row_is_computed_once_while_it_is_remembered(target, monkeypatch):
    computed = []
    row = OnlineFeatures.row
    monkeypatch.setattr(
        OnlineFeatures, "row", lambda self, index: computed.append(index) or row(self, index)
    )
    readers = [
        SharedFeatures(target, made_up([(3, 5)] * 4), TAPS, "float32", kept=2).reader(TAPS[0])
    ]
    readers.append(readers[0].shared.reader(TAPS[2]))
    for step in ((0, 1), (2, 3), (0, 1)):
        for reader in readers:
            for index in step:
                reader.row(index)
    assert computed == [0, 1, 2, 3, 0, 1]
