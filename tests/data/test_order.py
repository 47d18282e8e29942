from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.data.order import StepOrder


def lengths_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 100, count).tolist()


@given(count=st.integers(1, 60), sequences=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_epoch_sees_every_sequence(count, sequences, seed):
    order = StepOrder(lengths_of(count), sequences, seed)
    per_epoch = order.steps_per_epoch
    for epoch in range(3):
        steps = [order.rows(epoch * per_epoch + step) for step in range(per_epoch)]
        assert {len(rows) for rows in steps} == {sequences}
        seen = np.bincount(np.concatenate(steps), minlength=count)
        assert len(seen) == count
        assert seen.min() >= 1
        assert (
            seen.max() - seen.min() <= 1
        )  # a last, short step is filled up, as evenly as possible


@given(step=st.integers(0, 500), seed=st.integers(0, 99))
def test_a_step_depends_on_nothing_but_seed_and_step(step, seed):
    lengths = lengths_of(37)
    walked = StepOrder(lengths, 4, seed)
    for earlier in range(max(0, step - 12), step):
        walked.rows(earlier)
    assert walked.rows(step) == StepOrder(lengths, 4, seed).rows(step)


def test_seeds_and_epochs_differ():
    lengths = lengths_of(40)
    first = StepOrder(lengths, 4, 0)
    assert first.rows(0) != first.rows(first.steps_per_epoch)
    assert first.rows(0) != StepOrder(lengths, 4, 1).rows(0)


def test_sequences_of_a_step_are_of_similar_length():
    lengths = np.asarray(lengths_of(640))

    def padding(steps: list[list[int]]) -> int:
        return sum(int((lengths[rows].max() - lengths[rows]).sum()) for rows in steps)

    order = StepOrder(lengths.tolist(), 8, 0)
    sorted_steps = [order.rows(step) for step in range(order.steps_per_epoch)]
    shuffled = np.random.default_rng(0).permutation(640).reshape(-1, 8).tolist()
    assert padding(sorted_steps) < padding(shuffled) / 2
    # the steps themselves come in no order of length
    means = [lengths[rows].mean() for rows in sorted_steps]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.4
