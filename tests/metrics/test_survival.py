import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.metrics import MarginalCounter, SurvivalCounter

BLOCKS = st.lists(
    st.integers(0, 5).flatmap(lambda labels: st.tuples(st.integers(0, labels), st.just(labels))),
    max_size=30,
)


def by_hand(blocks: list[tuple[int, int]], slots: int) -> list[list[int]]:
    """reached, accepted, censored of every slot, block by block."""
    table = [[0] * slots for _ in range(3)]
    for match, labels in blocks:
        for k in range(1, slots + 1):
            if match >= k - 1:
                table[0][k - 1] += labels >= k
                table[1][k - 1] += match >= k
                table[2][k - 1] += labels < k
    return table


@given(BLOCKS)
def test_counts_equal_a_count_by_hand(blocks):
    match, labels = (np.array([b[i] for b in blocks], dtype=int) for i in (0, 1))
    counter = SurvivalCounter.of(match, labels, slots=5)
    table = [counter.reached.tolist(), counter.accepted.tolist(), counter.censored.tolist()]
    assert table == by_hand(blocks, 5)


@given(BLOCKS, st.integers(0, 30))
def test_counters_add(blocks, cut):
    match, labels = (np.array([b[i] for b in blocks], dtype=int) for i in (0, 1))
    whole = SurvivalCounter.of(match, labels, slots=5)
    left = SurvivalCounter.of(match[:cut], labels[:cut], slots=5)
    both = left + SurvivalCounter.of(match[cut:], labels[cut:], slots=5)
    assert both.blocks == whole.blocks
    for name in ("reached", "accepted", "censored"):
        assert np.array_equal(getattr(both, name), getattr(whole, name))


def test_without_censoring_survival_is_the_share_of_blocks():
    match = np.array([0, 1, 1, 3, 3, 2])
    counter = SurvivalCounter.of(match, np.full(6, 3), slots=3)
    shares = [(match >= k).mean() for k in (1, 2, 3)]
    assert counter.survival == pytest.approx(shares)
    assert counter.expected_length == pytest.approx(1 + match.mean())
    assert counter.block_prefix == pytest.approx(match.mean())


def test_marginals_count_slots_behind_a_wrong_one():
    correct = np.array([[0, 1, 1], [1, 1, 0]], dtype=bool)
    valid = np.array([[1, 1, 1], [1, 1, 0]], dtype=bool)
    counter = MarginalCounter.of(correct, valid)
    assert counter.marginal.tolist() == [0.5, 1.0, 1.0]
    assert counter.token_accuracy == 4 / 5


def test_counters_of_different_blocks_do_not_add():
    with pytest.raises(ValueError, match="do not add"):
        SurvivalCounter.of([1], [1], slots=2) + SurvivalCounter.of([1], [1], slots=3)


def test_more_matches_than_labels_are_refused():
    with pytest.raises(ValueError, match="match <= labels"):
        SurvivalCounter.of(np.array([2]), np.array([1]), slots=3)
