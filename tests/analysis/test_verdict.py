"""The words of design §9, one case each."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics import Interval, smallest_detectable
from analysis.verdict import verdict

UP = Interval(0.3, 0.1, 0.5, 0.1)
DOWN = Interval(-0.3, -0.5, -0.1, 0.1)
FLAT = Interval(0.01, -0.1, 0.12, 0.05)
NO_EVIDENCE = "no evidence of a difference (smallest detectable: "


@pytest.mark.parametrize(
    ("interval", "p_holm", "prompts", "seeds", "words"),
    [
        (UP, 0.001, 80, 3, "better"),
        (DOWN, 0.001, 80, 3, "worse"),
        (FLAT, 0.8, 80, 3, f"{NO_EVIDENCE}{smallest_detectable(0.05):.2g})"),
        (UP, 0.2, 80, 3, f"{NO_EVIDENCE}0.28)"),  # the interval alone is not enough
        (FLAT, 0.001, 80, 3, f"{NO_EVIDENCE}0.14)"),  # nor is the test
        (UP, 0.001, 80, 1, "single seed"),
        (UP, 0.001, 80, 2, "too few seeds (2)"),
        (UP, 0.001, 9, 3, "too few prompts (9)"),
        (UP, 0.001, 10, 3, "better"),
        (UP, 0.001, 9, 1, "too few prompts (9)"),
        (
            Interval(*[np.nan] * 4),
            np.nan,
            0,
            0,
            "not compared (no answers paired with the control)",
        ),
    ],
)
def test_words(interval: Interval, p_holm: float, prompts: int, seeds: int, words: str) -> None:
    assert verdict(interval, p_holm, prompts, seeds) == words


def test_invalid_and_refused_go_before_any_number() -> None:
    assert verdict(UP, 0.001, 80, 3, invalid=True, frozen="q_norm") == "invalid"
    assert verdict(UP, 0.001, 80, 3, frozen="fc never moved in the arm") == (
        "refused (fc never moved in the arm)"
    )


@pytest.mark.parametrize(
    ("floor", "words"),
    [(0.29, "better"), (0.31, "below the noise floor (0.31)"), (np.nan, "better")],
)
def test_a_difference_must_clear_the_noise_floor(floor: float, words: str) -> None:
    assert verdict(UP, 0.001, 80, 3, noise_floor=floor) == words
    opposite = words.replace("better", "worse")
    assert verdict(DOWN, 0.001, 80, 3, noise_floor=floor) == opposite
    assert verdict(FLAT, 0.8, 80, 3, noise_floor=floor).startswith(NO_EVIDENCE)


@pytest.mark.parametrize(("floor", "found"), [(0.1, "0.14"), (0.2, "0.2"), (np.nan, "0.14")])
def test_nothing_below_the_noise_floor_is_called_detectable(floor: float, found: str) -> None:
    assert verdict(FLAT, 0.8, 80, 3, noise_floor=floor) == f"{NO_EVIDENCE}{found})"
