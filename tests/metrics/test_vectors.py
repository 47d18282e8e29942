"""Vectors V1 to V7 of the conventions page; V5 and V7 on real decoding are in tests/decoding."""

import numpy as np
import pytest

from dflash.metrics import AcceptanceCounter, MarginalCounter, SurvivalCounter, prefix_length


def runs(*accepted: int, slots: int = 3) -> np.ndarray:
    """Correctness rows with the given leading runs and nothing right behind them."""
    return np.arange(1, slots + 1) <= np.array(accepted)[:, None]


def marginals(rows: np.ndarray) -> MarginalCounter:
    return MarginalCounter.of(rows, np.ones_like(rows, dtype=bool))


def prefixes(rows: np.ndarray) -> SurvivalCounter:
    match = np.logical_and.accumulate(rows, axis=1).sum(1)
    return SurvivalCounter.of(match, np.full(len(rows), rows.shape[1]), rows.shape[1])


def test_v1_per_block_mean_against_products_of_marginals():
    first, second = runs(3, 1), runs(2, 0)
    assert (prefixes(first) + prefixes(second)).block_prefix == 1.5
    per_batch = [marginals(batch).marginal_product for batch in (first, second)]
    assert np.mean(per_batch) == 1.25
    assert (marginals(first) + marginals(second)).marginal_product == 1.21875


@pytest.mark.parametrize(("rows", "per_block"), [([[1, 1], [0, 0]], 1.0), ([[1, 0], [0, 1]], 0.5)])
def test_v2_a_product_cannot_tell_correlated_blocks_apart(rows, per_block):
    rows = np.array(rows, dtype=bool)
    assert prefixes(rows).block_prefix == per_block
    assert marginals(rows).marginal_product == 0.75
    assert marginals(rows).token_accuracy == 0.5


@pytest.mark.parametrize(("rule", "length"), [("pass", 2), ("stop", 1), ("drop", None)])
def test_v3_hole_in_a_block_by_named_rule(rule, length):
    assert prefix_length(np.array([1, 0, 1]), np.array([1, 0, 1]), rule) == length


def test_v3_a_wrong_slot_ends_the_run_under_every_rule():
    correct, valid = np.array([1, 0, 1]), np.array([1, 1, 1])
    assert [prefix_length(correct, valid, rule) for rule in ("pass", "stop", "drop")] == [1, 1, 1]


@pytest.mark.parametrize("rule", ["pass", "stop", "drop"])
def test_v4_missing_labels_at_the_end_of_a_block_are_no_hole(rule):
    valid = np.arange(15) < 2
    assert prefix_length(np.ones(15), valid, rule) == 2


def test_v4_block_cut_by_the_end_is_censored_and_never_a_failure():
    cut = SurvivalCounter.of(np.array([2]), np.array([2]), slots=15)
    assert cut.accepted.tolist() == [1, 1] + [0] * 13
    assert cut.reached.tolist() == [1, 1] + [0] * 13
    assert cut.censored.tolist() == [0, 0, 1] + [0] * 12
    assert cut.conditional[:2].tolist() == [1.0, 1.0]
    assert np.isnan(cut.conditional[2:]).all()
    # One more block that fails at slot 3: the risk set there is that block alone.
    both = cut + SurvivalCounter.of(np.array([2]), np.array([15]), slots=15)
    assert both.reached[2] == 1
    assert both.accepted[2] == 0
    assert both.survival[:3].tolist() == [1.0, 1.0, 0.0]
    assert both.survival[14] == 0.0


def test_v6_bonus_token_is_in_the_length_and_not_in_the_rate():
    counter = AcceptanceCounter.of_prompt([4, 2, 1], [3, 1, 0], width=4)
    assert counter.accept_rate == 4 / 9
    assert counter.al_incl_bonus == pytest.approx(1 + counter.accept_rate * 3)
    assert counter.tau == 7 / 3


def test_v7_plain_decoding_has_length_one():
    counter = AcceptanceCounter.of_prompt([1] * 9, [0] * 9, width=1)
    assert counter.tau == counter.tau_mean == counter.tau_harmonic == counter.al_incl_bonus == 1.0
    assert counter.steps == counter.emitted == 9
