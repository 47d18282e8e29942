import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.metrics import AcceptanceCounter

PROMPTS = st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=20), min_size=1, max_size=8)


def count(prompts: list[list[int]]) -> AcceptanceCounter:
    counters = [AcceptanceCounter.of_prompt(p, [n - 1 for n in p], width=16) for p in prompts]
    return sum(counters, AcceptanceCounter())


@given(PROMPTS)
def test_estimators_equal_their_definitions(prompts):
    counter, taus = count(prompts), np.array([np.mean(p) for p in prompts])
    assert counter.tau == pytest.approx(np.mean(np.concatenate(prompts)))
    assert counter.tau_mean == pytest.approx(taus.mean())
    assert counter.tau_harmonic == pytest.approx(1 / np.mean(1 / taus))
    assert counter.tau_harmonic <= counter.tau_mean + 1e-12


@given(PROMPTS)
def test_the_rate_identity_holds_on_pooled_counts(prompts):
    counter = count(prompts)
    assert counter.al_incl_bonus == pytest.approx(1 + 15 * counter.accept_rate)
    assert counter.al_incl_bonus == pytest.approx(counter.tau)  # nothing was truncated


def test_three_means_of_one_trace_disagree():
    counter = count([[16, 16], [1] * 8])
    assert (counter.tau, counter.tau_mean) == (4.0, 8.5)
    assert counter.tau_harmonic == pytest.approx(2 / (1 / 16 + 1))


def test_a_prompt_without_steps_counts_for_nothing():
    assert AcceptanceCounter.of_prompt([], [], width=4) == AcceptanceCounter()
    assert np.isnan(AcceptanceCounter().tau)


@pytest.mark.parametrize(("emitted", "accepted"), [([1, 2], [0]), ([0], [0])])
def test_impossible_counts_are_refused(emitted, accepted):
    with pytest.raises(ValueError, match=r"accepted counts|at least one token"):
        AcceptanceCounter.of_prompt(emitted, accepted, width=4)
