import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.decoding import LookupProposer, UnigramProposer, replay_floor
from dflash.model import UserError
from tests.decoding.toys import Answer

TEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=25)


def answer(prompt: list[int], tokens: list[int]) -> Answer:
    return Answer(np.array(prompt, dtype=np.int32), np.array(tokens, dtype=np.int32))


def lookup_by_hand(text: list[int], longest: int, slots: int) -> list[int]:
    """Every earlier end of every suffix, longest suffix first, latest place first."""
    for size in range(min(longest, len(text)), 0, -1):
        for end in range(len(text) - 2, size - 2, -1):
            if text[end - size + 1 : end + 1] == text[-size:]:
                return text[end + 1 : end + 1 + slots]
    return []


@given(TEXTS, st.integers(1, 5), st.integers(1, 4))
def test_lookup_equals_a_search_by_hand(text, longest, slots):
    anchors = np.arange(len(text) - 1)
    proposals = LookupProposer(longest).propose(np.array(text), anchors, slots)
    for row, anchor in zip(proposals, anchors, strict=True):
        expected = lookup_by_hand(text[: anchor + 1], longest, slots)
        assert row[row >= 0].tolist() == expected


@given(TEXTS, TEXTS)
def test_lookup_never_reads_beyond_its_anchor(text, other):
    anchor = np.array([len(text) - 1])
    alone = LookupProposer().propose(np.array([*text, 0]), anchor, 4)
    assert np.array_equal(alone, LookupProposer().propose(np.array(text + other), anchor, 4))


def test_lookup_walks_through_a_copied_passage():
    [row] = replay_floor(LookupProposer(), [answer([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])], 4)
    assert row.match.tolist() == [3, 3, 3, 2, 1]
    assert row.acceptance_lengths() == [4, 1]


def test_unigram_proposes_the_most_frequent_training_token():
    proposer = UnigramProposer.fit([np.array([7, 7, 3]), np.array([9, 7, 3, 3, 3])])
    assert proposer.token == 3
    [row] = replay_floor(proposer, [answer([0], [1, 3, 3, 5, 3])], block_size=3)
    assert row.match.tolist() == [2, 1, 0, 1]
    assert row.acceptance_lengths() == [3, 1]
    assert row.marginals().correct.tolist() == [3, 2]


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="training answers"):
        UnigramProposer.fit([np.array([], dtype=np.int32)])
    with pytest.raises(UserError, match="longest"):
        LookupProposer(0)
    with pytest.raises(UserError, match="block_size"):
        replay_floor(UnigramProposer(1), [], block_size=1)
