import numpy as np
import pytest

from dflash.data.loops import degenerate, loop_start, repeated_ngram_share

FRESH = list(np.random.default_rng(0).integers(0, 10_000, 200))


def test_ordinary_text_is_fine():
    assert loop_start(FRESH) is None
    assert repeated_ngram_share(FRESH) == 0.0
    assert not degenerate(FRESH)


@pytest.mark.parametrize("period", [1, 3, 16, 50])
def test_a_run_that_repeats_to_the_end_is_found_where_it_begins(period):
    looping = FRESH + FRESH[50 : 50 + period] * (200 // period)
    assert loop_start(looping) == 200
    assert degenerate(looping)


def test_three_repeats_are_no_loop_yet():
    assert loop_start(FRESH + [1, 2, 3, 4, 5, 6, 7, 8] * 3) is None


def test_a_short_stammer_is_no_loop():
    assert loop_start([*FRESH, 7, 7, 7, 7, 7]) is None


def test_text_that_repeats_without_ending_in_the_run_is_flagged_by_its_ngrams():
    looping = FRESH[:10] * 12 + FRESH[100:130]
    assert loop_start(looping) is None
    assert repeated_ngram_share(looping) > 0.5
    assert degenerate(looping)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2, 3]])
def test_short_answers_are_fine(tokens):
    assert not degenerate(tokens)
