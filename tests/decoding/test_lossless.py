"""Greedy output is the target's own, whatever the drafter; and replay tells how it was reached."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dflash.decoding import dflash_generate
from dflash.decoding.replay import replay
from tests.decoding.pairwise import combinations, nested
from tests.decoding.toys import MASK, Rows, answered, toy_drafter, toy_prompt, toy_target

NEW = 24


def name_of(flat: dict[str, Any]) -> str:
    return "-".join(str(value) for value in flat.values())


@pytest.mark.parametrize("switches", combinations(), ids=name_of)
def test_every_pair_of_switches(switches):
    target = toy_target()
    drafter, prompt = toy_drafter(target, **nested(switches)), toy_prompt(9)
    answer, features = answered(target, drafter, prompt, NEW)
    result = dflash_generate(drafter, target, prompt, NEW, return_stats=True)
    assert result.output_ids[0, 9:].tolist() == answer.answer_ids.tolist()
    [row] = replay(drafter, target, [answer], Rows([features]))
    assert row.acceptance_lengths() == result.acceptance_lengths
    assert [9 + anchor for anchor, _ in row.steps()] == [step.anchor for step in result.steps]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_equals_generate_of_transformers(family, tied):
    target = toy_target(family, tied)
    drafter, prompt = toy_drafter(target), toy_prompt(5, seed=2)
    ours = dflash_generate(drafter, target, prompt, NEW)
    theirs = target.generate(prompt, max_new_tokens=NEW, do_sample=False, pad_token_id=MASK)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("block", "width"), [(block, width) for block in (2, 3, 8) for width in range(1, block + 1)]
)
def test_every_width_of_a_block_and_its_replay(block, width):
    target = toy_target(seed=1)
    drafter, prompt = toy_drafter(target, block_size=block), toy_prompt(6)
    answer, features = answered(target, drafter, prompt, NEW)
    result = dflash_generate(drafter, target, prompt, NEW, block_size=width, return_stats=True)
    assert result.output_ids[0, 6:].tolist() == answer.answer_ids.tolist()
    [wide] = replay(drafter, target, [answer], Rows([features]))
    [narrow] = replay(drafter, target, [answer], Rows([features]), width=width)
    assert result.acceptance_lengths == wide.at_width(width).acceptance_lengths()
    assert result.acceptance_lengths == narrow.acceptance_lengths()


def test_the_toys_do_accept():
    """Otherwise the tests above would compare rows of ones."""
    target = toy_target()
    lengths: list[int] = []
    for seed in range(6):
        drafter = toy_drafter(target, seed)
        result = dflash_generate(drafter, target, toy_prompt(9), NEW, return_stats=True)
        lengths += result.acceptance_lengths
    assert {1, 2, 3, 4} <= set(lengths)
