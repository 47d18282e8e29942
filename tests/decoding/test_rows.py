import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.decoding.rows import ReplayRow, labels_of, leading_run, slot_labels, walk
from dflash.model import UserError


def row_of(right: np.ndarray, length: int) -> ReplayRow:
    return ReplayRow("p", "toy", 0, right.shape[1] + 1, leading_run(right), length, right)


@st.composite
def rows(draw: st.DrawFn) -> ReplayRow:
    """Random correctness of every slot, False beyond the answer's end."""
    length, slots = draw(st.integers(0, 12)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 10_000))
    right = np.random.default_rng(seed).random((max(length - 1, 0), slots)) < 0.7
    return row_of(right & (labels_of(length, slots)[:, None] > np.arange(slots)), length)


def test_labels_of_every_slot_by_hand():
    labels = slot_labels(np.array([10, 11, 12, 13]), slots=2)
    assert labels.tolist() == [[11, 12], [12, 13], [13, -1]]
    assert labels_of(4, 2).tolist() == [2, 2, 1]


@pytest.mark.parametrize("length", [0, 1])
def test_answers_without_an_anchor(length):
    assert slot_labels(np.arange(length), slots=3).shape == (0, 3)
    assert labels_of(length, 3).shape == (0,)
    assert walk([]) == []


def test_walk_by_hand():
    assert walk([2, 0, 0, 1, 0, 0]) == [(0, 3), (3, 2), (5, 1)]
    assert walk([2, 0, 0, 1, 0, 0], first_anchor=1, end=4) == [(1, 1), (2, 1), (3, 1)]


@given(rows())
def test_a_walk_emits_the_whole_answer_but_its_first_token(row):
    lengths = row.acceptance_lengths()
    assert sum(lengths) == max(row.answer_length - 1, 0)
    assert all(1 <= n <= row.width for n in lengths)
    assert row.acceptance().emitted == sum(lengths)


@given(rows(), st.data())
def test_a_narrower_width_forgets_the_last_slots(row, data):
    width = data.draw(st.integers(1, row.width))
    narrow = row.at_width(width)
    assert narrow.match.tolist() == leading_run(row.right[:, : width - 1]).tolist()
    assert sum(narrow.acceptance_lengths()) == sum(row.acceptance_lengths())
    if width == 1:
        assert set(narrow.acceptance_lengths()) <= {1}


@given(rows())
def test_visited_anchors_are_those_of_the_walk(row):
    visited, everywhere = row.survival("visited"), row.survival("all")
    assert visited.blocks == len(row.steps())
    assert everywhere.blocks == len(row.match)
    assert (visited.reached <= everywhere.reached).all()
    assert visited.accepted.sum() == row.acceptance().accepted


@given(rows())
def test_survival_and_marginals_agree_on_the_first_slot(row):
    survival, marginal = row.survival(), row.marginals()
    assert survival.reached[0] == marginal.labelled[0]
    assert survival.accepted[0] == marginal.correct[0]


def test_widths_out_of_range_are_refused():
    row = row_of(np.zeros((3, 3), dtype=bool), 4)
    for width in (0, 5):
        with pytest.raises(UserError, match="width"):
            row.at_width(width)


def test_marginals_need_every_slot():
    row = ReplayRow("p", "toy", 0, 3, np.zeros(3, dtype=np.int64), 4)
    with pytest.raises(ValueError, match="marginal"):
        row.marginals()
