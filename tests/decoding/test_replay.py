from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.decoding import dflash_generate
from dflash.decoding.replay import replay
from dflash.model import UserError
from tests.decoding.toys import Answer, Rows, answered, toy_drafter, toy_prompt, toy_target

MODULE = importlib.import_module("dflash.decoding.replay")  # the package exports the function


@settings(max_examples=12, deadline=None)
@given(
    family=st.sampled_from(["llama", "qwen3"]),
    tied=st.booleans(),
    seed=st.integers(0, 50),
    block_size=st.integers(2, 7),
    num_layers=st.integers(1, 3),
    shapes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 16)), min_size=1, max_size=3),
    budget=st.integers(1, 200),
)
def test_replay_equals_decoding_step_by_step(
    family, tied, seed, block_size, num_layers, shapes, budget
):
    target = toy_target(family, tied, seed)
    drafter = toy_drafter(target, seed, block_size=block_size, num_layers=num_layers)
    known = [answered(target, drafter, toy_prompt(p, seed + p), n) for p, n in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "QUERY_ROWS", budget)  # any cut into batches
        rows = replay(drafter, target, [a for a, _ in known], Rows([f for _, f in known]))
    for (prompt_length, new), (answer, _), row in zip(shapes, known, rows, strict=True):
        prompt = torch.from_numpy(answer.prompt_ids)[None]
        result = dflash_generate(drafter, target, prompt, new, return_stats=True)
        steps = [(step.anchor - prompt_length, step.emitted) for step in result.steps]
        assert row.steps() == steps
        for step in result.steps:
            match = row.match[step.anchor - prompt_length]
            assert match == min(step.accepted, new - 1 - (step.anchor - prompt_length))


@pytest.fixture(scope="module")
def case():
    target = toy_target(seed=6)
    drafter = toy_drafter(target, seed=6, block_size=5)
    known = [answered(target, drafter, toy_prompt(p, p), 30 - p) for p in (4, 11, 7)]
    return drafter, target, [a for a, _ in known], Rows([f for _, f in known])


def test_all_slots_and_reached_slots_give_the_same_matches(case):
    few, every = replay(*case), replay(*case, slots="all")
    for left, right in zip(few, every, strict=True):
        assert left.match.tolist() == right.match.tolist()
        assert left.right is None
        right_run = np.logical_and.accumulate(right.right, axis=1).sum(1)
        assert right_run.tolist() == right.match.tolist()
    wrong_before = sum((~np.logical_and.accumulate(r.right, axis=1) & r.right).sum() for r in every)
    assert wrong_before > 0  # slots behind a wrong one are looked at


def test_small_logit_chunks_change_nothing(case, monkeypatch):
    whole = replay(*case, slots="all")
    monkeypatch.setattr(MODULE, "LOGIT_ELEMENTS", 1)
    for left, right in zip(whole, replay(*case, slots="all"), strict=True):
        assert np.array_equal(left.right, right.right)


def test_rows_come_in_the_order_of_the_rollouts(case):
    drafter, target, answers, features = case
    order = [2, 0, 1]
    mixed = replay(
        drafter, target, [answers[i] for i in order], Rows([features.rows[i] for i in order])
    )
    straight = replay(*case)
    for row, index in zip(mixed, order, strict=True):
        assert row.match.tolist() == straight[index].match.tolist()


def test_features_at_or_after_an_anchor_do_not_matter(case):
    """The last anchor is the last token but one: features from there on are never read."""
    drafter, target, answers, features = case
    other = [torch.cat([row[:-2], torch.full_like(row[-2:], 1e9)]) for row in features.rows]
    changed = replay(drafter, target, answers, Rows(other))
    for left, right in zip(replay(*case), changed, strict=True):
        assert left.match.tolist() == right.match.tolist()


def test_a_leak_is_off(case):
    drafter, target, answers, features = case
    leaky = toy_drafter(target, seed=6, block_size=5, attention={"leak": 3})
    leaky.load_state_dict(drafter.state_dict())
    for left, right in zip(replay(*case), replay(leaky, target, answers, features), strict=True):
        assert left.match.tolist() == right.match.tolist()


def test_the_drafter_is_left_as_it_was(case):
    drafter = case[0]
    before = drafter.config._attn_implementation
    drafter.train()
    replay(*case)
    assert drafter.training
    assert drafter.config._attn_implementation == before
    drafter.eval()


def test_answers_too_short_to_draft(case):
    drafter, target, _, features = case
    prompt = np.array([1, 2])
    answers = [Answer(prompt, np.array([], dtype=np.int32)), Answer(prompt, np.array([3]))]
    rows = replay(drafter, target, answers, Rows(features.rows))
    assert [row.acceptance_lengths() for row in rows] == [[], []]
    assert sum(row.acceptance().prompts for row in rows) == 0


def test_bad_input_is_refused(case):
    drafter, target, answers, features = case
    with pytest.raises(UserError, match="1 to 5"):
        replay(drafter, target, answers, features, width=6)
    with pytest.raises(UserError, match="features=None"):
        replay(drafter, target, answers, None)
    with pytest.raises(UserError, match=r"features\.row\(\d\)"):
        replay(drafter, target, answers, Rows([row[:5] for row in features.rows]))
