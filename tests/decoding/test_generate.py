"""Counting, edges and errors of the decode loop, on scripted proposals."""

from __future__ import annotations

import pytest
import torch

from dflash.decoding import Generation, dflash_generate
from dflash.model import UserError
from dflash.target import Target, TargetConfig
from tests.decoding.toys import (
    ScriptedDrafter,
    greedy,
    toy_drafter,
    toy_prompt,
    toy_target,
)

PROMPT = toy_prompt(5)
LENGTH = PROMPT.shape[1]


@pytest.fixture(scope="module")
def target():
    return toy_target(seed=4)


@pytest.fixture(scope="module")
def answer(target):
    return greedy(target, PROMPT, 40)


def knowing(answer: list[int], block_size: int, wrong: tuple[int, ...] = ()) -> ScriptedDrafter:
    """Proposes the answer, but for the answer indices in ``wrong``."""
    script = PROMPT[0].tolist() + answer
    for index in wrong:
        script[LENGTH + index] = (script[LENGTH + index] + 1) % 5
    return ScriptedDrafter(script, block_size)


def run(draft, target, count: int, **options) -> Generation:
    result = dflash_generate(draft, target, PROMPT, count, return_stats=True, **options)
    assert isinstance(result, Generation)
    emitted = sum(result.acceptance_lengths)
    assert emitted == max(result.num_output_tokens - 1, 0)
    assert result.output_ids.shape == (1, LENGTH + result.num_output_tokens)
    return result


def test_a_perfect_drafter_emits_whole_blocks(target, answer):
    result = run(knowing(answer, 4), target, 17)
    assert result.acceptance_lengths == [4, 4, 4, 4]
    assert [step.accepted for step in result.steps] == [3, 3, 3, 3]
    assert [step.anchor for step in result.steps] == [LENGTH + i for i in (0, 4, 8, 12)]


def test_a_wrong_slot_ends_the_accepted_run(target, answer):
    result = run(knowing(answer, 4, wrong=(2, 5)), target, 9)
    # anchor 0: slot 2 wrong; anchor 2: slot 3 wrong; anchor 5: all right but cut at the limit
    assert [step.accepted for step in result.steps] == [1, 2, 3]
    assert result.acceptance_lengths == [2, 3, 3]


@pytest.mark.parametrize("count", range(10))
def test_v5_length_limit_inside_a_block(target, answer, count):
    result = run(knowing(answer, 4), target, count)
    assert result.output_ids[0, LENGTH:].tolist() == answer[:count]
    full, rest = divmod(max(count - 1, 0), 4)
    assert result.acceptance_lengths == [4] * full + [rest] * (rest > 0)


@pytest.mark.parametrize("stop_at", range(8))
def test_v5_stop_token_inside_an_accepted_block(target, answer, stop_at):
    first = answer.index(answer[stop_at])  # the token may occur earlier
    result = run(knowing(answer, 4), target, 30, stop_token_ids=[answer[stop_at]])
    assert result.output_ids[0, LENGTH:].tolist() == answer[: first + 1]
    if first % 4:  # not at the end of a block
        assert result.steps[-1].accepted + 1 > result.steps[-1].emitted


def test_no_stop_tokens_means_none(target, answer):
    assert run(knowing(answer, 4), target, 30).num_output_tokens == 30


def test_v7_block_size_one_is_plain_decoding(target, answer):
    for draft in (None, knowing(answer, 4)):
        result = run(draft, target, 12, block_size=1)
        assert result.output_ids[0, LENGTH:].tolist() == answer[:12]
        assert result.acceptance_lengths == [1] * 11
        assert result.acceptance().tau == result.acceptance().al_incl_bonus == 1.0


def test_v6_length_and_rate_agree(target, answer):
    counts = run(knowing(answer, 4, wrong=(2, 5, 6, 11)), target, 30).acceptance()
    assert counts.al_incl_bonus == pytest.approx(1 + 3 * counts.accept_rate)


def test_streaming_tells_accepted_tokens_from_the_targets_own(target, answer):
    seen: list[tuple[list[int], int | None]] = []
    draft = knowing(answer, 4, wrong=(2,))
    run(draft, target, 8, on_step=lambda accepted, own: seen.append((accepted, own)))
    assert seen == [
        ([], answer[0]),
        (answer[1:2], answer[2]),
        (answer[3:6], answer[6]),
        (answer[7:8], None),  # the limit cut the run
    ]


def test_times_add_up(target, answer):
    result = run(knowing(answer, 4), target, 20)
    laps = [t for s in result.steps for t in (s.t_draft, s.t_verify, s.t_host)]
    assert min(laps) >= 0
    assert result.prefill_seconds > 0
    assert 0.9 * result.decode_seconds <= sum(laps) <= result.decode_seconds
    times = result.timings
    assert times["prefill"] == result.prefill_seconds
    assert times["decode"] == result.decode_seconds
    assert sum(times[name] for name in ("draft", "verify", "host")) == pytest.approx(sum(laps))
    assert times["verify"] == sum(step.t_verify for step in result.steps)


def test_our_target_and_its_model_give_the_same(target):
    drafter = toy_drafter(target)
    ours = Target(TargetConfig("toy", "toy"), target, None, "toy", ())
    plain = dflash_generate(drafter, target, PROMPT, 12)
    assert torch.equal(dflash_generate(drafter, ours, PROMPT, 12), plain)
    assert torch.equal(drafter.spec_generate(target, PROMPT, 12, None), plain)


def test_every_call_starts_clean(target):
    drafter = toy_drafter(target)
    first = run(drafter, target, 20)
    dflash_generate(drafter, target, toy_prompt(30, seed=9), 5)
    again = run(drafter, target, 20)
    assert again.acceptance_lengths == first.acceptance_lengths
    assert not any(layer._forward_hooks for layer in target.model.layers)


def test_modes_are_put_back_and_no_graph_is_kept(target):
    drafter = toy_drafter(target).train()
    result = run(drafter, target, 5)
    assert drafter.training
    assert not target.training
    assert not result.output_ids.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": PROMPT[:, :0]}, "prompt=''"),
        ({"input_ids": PROMPT[0]}, "one row"),
        ({"input_ids": PROMPT.repeat(2, 1)}, "one row"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"max_new_tokens": 252}, "252 do not fit; allowed: 256"),
        ({"input_ids": toy_prompt(300)}, "300 tokens"),
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": 5}, "1 to 4, the trained block"),
        ({"draft": None}, "1 without a drafter"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"verify": "hope"}, "allowed: match"),
    ],
)
def test_bad_input_is_one_clear_line(target, change, message):
    arguments = {
        "draft": toy_drafter(target),
        "target": target,
        "input_ids": PROMPT,
        "max_new_tokens": 8,
        **change,
    }
    with pytest.raises(UserError, match=message) as caught:
        dflash_generate(**arguments)
    assert "\n" not in str(caught.value)
