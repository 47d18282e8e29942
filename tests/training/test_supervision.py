"""Slots counted without training are the slots that training counts."""

from __future__ import annotations

import pytest

from dflash.training.supervision import supervised_slots
from tests.training.toys import SHAPES, answers, recipe, switches, toy, train

STEPS = 3


@pytest.mark.parametrize(
    ("changed", "given"),
    [
        ({}, {}),
        ({"seed_shift": 1000}, {}),
        ({"anchors": "uniform"}, {"block_size": 6}),
        ({}, {"vocab": "top:6"}),
    ],
    ids=str,
)
def test_they_are_what_a_run_reports(tmp_path, changed, given):
    target = toy()
    rollouts = answers(target, SHAPES)
    config = recipe(steps=STEPS, **changed)
    slots = supervised_slots(config, switches(**given), rollouts, target.vocab_size, seed=0)
    trained = train(tmp_path, target, rollouts, config, **given)
    assert trained.tokens == sum(map(slots, range(STEPS)))


def test_each_of_these_cases_counts_otherwise():
    """Else the test above would not tell them apart."""
    target = toy()
    rollouts = answers(target, SHAPES)

    def total(changed, given) -> int:
        config = recipe(steps=STEPS, **changed)
        parts = (config, switches(**given), rollouts, target.vocab_size)
        return sum(map(supervised_slots(*parts, seed=0), range(STEPS)))

    plain = total({}, {})
    assert total({"seed_shift": 1000}, {}) != plain
    assert total({}, {"vocab": "top:6"}) < plain
