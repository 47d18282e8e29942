from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.data.anchors import eligible
from dflash.data.collate import BlockBatch, BlockSampler, collate
from tests.data.toys import made_up
from tests.decoding.toys import Rows

ROLLOUTS = made_up([(3, 5), (2, 2), (4, 9)])


def features(dtype: torch.dtype = torch.float32) -> Rows:
    return Rows([torch.randn(len(row.token_ids), 6, dtype=dtype) for row in ROLLOUTS])


def test_golden_batch():
    source = features()
    anchors = [np.array([4, 6]), np.array([2])]
    batch = collate(ROLLOUTS, source, [0, 1], anchors, block_size=3)
    a, b = ROLLOUTS[0].token_ids.tolist(), ROLLOUTS[1].token_ids.tolist()
    assert batch.token_ids.tolist() == [a, b + [0] * 4]
    assert batch.lengths.tolist() == [8, 4]
    assert batch.anchors.tolist() == [[4, 6], [2, 0]]
    assert batch.valid.tolist() == [[True, True], [True, False]]
    assert batch.labels.tolist() == [
        [[-100, a[5], a[6]], [-100, a[7], -100]],
        [[-100, b[3], -100], [-100, -100, -100]],
    ]
    assert batch.anchor_ids.tolist() == [[a[4], a[6]], [b[2], b[0]]]
    assert batch.features is not None
    assert torch.equal(batch.features[0], source.row(0))
    assert torch.equal(batch.features[1, :4], source.row(1))
    assert not batch.features[1, 4:].any()


def test_rows_are_looked_up_not_counted():
    batch = collate(ROLLOUTS, features(), [2, 0], [np.array([5]), np.array([3])], 4)
    assert batch.token_ids[0].tolist() == ROLLOUTS[2].token_ids.tolist()
    assert batch.token_ids[1, :8].tolist() == ROLLOUTS[0].token_ids.tolist()


def test_stored_bf16_features_become_fp32_exactly():
    source = features(torch.bfloat16)
    batch = collate(ROLLOUTS, source, [1], [np.array([2])], 3)
    assert batch.features is not None
    assert batch.features.dtype == torch.float32
    assert torch.equal(batch.features[0].bfloat16(), source.row(1))


def test_a_row_without_anchors_is_padding():
    none = np.zeros(0, dtype=np.int64)
    batch = collate(ROLLOUTS, None, [0, 1], [none, none], 3)
    assert batch.anchors.shape == (2, 1)
    assert not batch.valid.any()
    assert (batch.labels == -100).all()
    assert batch.features is None


def test_moving_keeps_what_is_absent_absent():
    batch = collate(ROLLOUTS, None, [0], [np.array([3])], 3)
    moved = batch.to("meta")
    assert isinstance(moved, BlockBatch)
    assert moved.features is None
    assert moved.labels.device.type == "meta"


def test_sampler_is_a_function_of_seed_step_and_row():
    def drawn(seed: int, step: int, row: int, block_size: int = 4) -> list[int]:
        sampler = BlockSampler("random", block_size, 4, seed)
        return sampler.anchors(ROLLOUTS[2], step, row).tolist()

    assert drawn(0, 1, 2) == drawn(0, 1, 2) == drawn(0, 1, 2, block_size=16)
    different = {tuple(drawn(*key)) for key in [(0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3)]}
    assert len(different) > 1
    assert set(drawn(0, 1, 2)) <= set(eligible(4, 9).tolist())


@pytest.mark.parametrize("rule", ["random", "uniform", "all"])
def test_sampled_anchors_always_have_something_to_learn(rule):
    sampler = BlockSampler(rule, 4, 3, 0)
    rows = range(len(ROLLOUTS))
    anchors = [sampler.anchors(ROLLOUTS[row], 0, row) for row in rows]
    batch = collate(ROLLOUTS, None, rows, anchors, 4)
    assert (batch.labels[batch.valid][:, 1] >= 0).all()
    assert (batch.labels[~batch.valid] == -100).all()
