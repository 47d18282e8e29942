from __future__ import annotations

import pytest

from dflash.data.collate import BlockBatch
from dflash.training.datamodule import StepBatches
from tests.data.toys import made_up
from tests.training.toys import SHAPES, recipe

ROLLOUTS = made_up(SHAPES, vocab=20)


def batches(rank: int = 0, world_size: int = 1, **given) -> StepBatches:
    return StepBatches(ROLLOUTS, None, recipe(**given), 4, 7, 5, rank, world_size)


def rows(parts: list[BlockBatch]) -> list[tuple[list[int], list[int]]]:
    """Tokens and anchors of every row, padding dropped."""
    return [
        (part.token_ids[i, : part.lengths[i]].tolist(), part.anchors[i][part.valid[i]].tolist())
        for part in parts
        for i in range(len(part.lengths))
    ]


@pytest.mark.parametrize("micro_batch", [None, 1, 2, 3])
def test_micro_batches_cut_the_same_step(micro_batch):
    whole, cut = batches(), batches(micro_batch=micro_batch)
    for step in range(5):
        assert rows(cut[step]) == rows(whole[step])
        sizes = [len(part.lengths) for part in cut[step]]
        assert max(sizes) <= (micro_batch or 4)
        assert sum(sizes) == 4


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_a_step_without_overlap(world_size):
    whole = batches()
    parts = [batches(rank, world_size) for rank in range(world_size)]
    for step in range(5):
        shared = [row for part in parts for row in rows(part[step])]
        assert sorted(shared) == sorted(rows(whole[step]))


def test_anchors_are_drawn_anew_every_step():
    seen: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    source = batches()
    for step in range(12):
        for tokens, anchors in rows(source[step]):
            seen.setdefault(tuple(tokens), set()).add(tuple(anchors))
    assert len(seen) == len(ROLLOUTS)
    assert sum(len(anchors) > 1 for anchors in seen.values()) >= 6
