from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dflash.data.anchors import ANCHOR_RULES, eligible, generator_for, labels_of

SHAPES = st.tuples(st.integers(1, 20), st.integers(0, 40))


def test_eligible_are_answer_tokens_with_a_successor():
    assert eligible(3, 4).tolist() == [3, 4, 5]
    assert eligible(3, 1).tolist() == []
    assert eligible(3, 0).tolist() == []


def test_golden_labels():
    tokens = [50, 51, 52, 53, 54, 55, 56]  # prompt 50 51, answer 52 ... 56
    anchors = np.array([2, 3, 5])
    assert labels_of(tokens, anchors, 4).tolist() == [
        [-100, 53, 54, 55],  # slot k predicts token anchor+k; nothing is shifted by one
        [-100, 54, 55, 56],
        [-100, 56, -100, -100],  # beyond the end of the answer
    ]
    assert labels_of(tokens, np.zeros(0, dtype=np.int64), 4).shape == (0, 4)


@given(shape=SHAPES, block_size=st.integers(2, 17))
def test_every_eligible_anchor_has_a_label(shape, block_size):
    prompt, answer = shape
    anchors = eligible(prompt, answer)
    labels = labels_of(np.arange(prompt + answer), anchors, block_size)
    assert (labels[:, 1] == anchors + 1).all()
    slots = anchors[:, None] + np.arange(block_size)
    known = (slots < prompt + answer) & (np.arange(block_size) > 0)
    np.testing.assert_array_equal(labels, np.where(known, slots, -100))


@given(
    shape=SHAPES,
    count=st.integers(1, 50),
    block_size=st.integers(2, 16),
    rule=st.sampled_from(["random", "uniform"]),
)
def test_drawn_anchors_are_sorted_distinct_and_as_many_as_asked(shape, count, block_size, rule):
    positions = eligible(*shape)
    drawn = ANCHOR_RULES[rule](positions, block_size, count, generator_for("a", 0))
    pool = positions if rule == "random" else positions[::block_size]
    assert len(drawn) == min(count, len(pool))
    assert (np.diff(drawn) > 0).all()
    assert np.isin(drawn, pool).all()


def test_random_anchors_are_uniform_over_the_eligible():
    positions = eligible(7, 24)
    draws = [
        ANCHOR_RULES["random"](positions, 8, 5, generator_for("a", 3, step, 0))
        for step in range(4000)
    ]
    counts = np.bincount(np.concatenate(draws) - 7, minlength=len(positions))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_uniform_anchors_cut_the_answer_into_blocks():
    positions = eligible(5, 11)
    assert ANCHOR_RULES["uniform"](positions, 4, 99, generator_for("a", 0)).tolist() == [5, 9, 13]


def test_all_anchors_ignore_the_count():
    positions = eligible(5, 11)
    assert (
        ANCHOR_RULES["all"](positions, 4, 2, generator_for("a", 0)).tolist() == positions.tolist()
    )


@pytest.mark.parametrize("rule", ["random", "all"])
def test_block_size_does_not_change_the_anchors(rule):
    positions = eligible(4, 60)
    drawn = [
        ANCHOR_RULES[rule](positions, size, 9, generator_for("a", 1, 2, 3)) for size in (4, 8, 16)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_generators_depend_on_every_part_of_the_key():
    def first(stream: str, *key: int) -> float:
        return generator_for(stream, *key).random()

    assert first("a", 2, 3) == first("a", 2, 3)
    keys = [("a", 2, 3), ("b", 2, 3), ("a", 0, 3), ("a", 2, 0)]
    assert len({first(*key) for key in keys}) == 4
