"""T-ORACLE1: the stack against a target whose optimum is known.

Speculative decoding is lossless, so a broken drafter still gives right text, only slowly. The
oracle makes the slowness measurable: trained and decoded rightly, nearly every block is accepted
whole. Every planted bug must show. Each is planted in one place, in decoding or in training, while
the rest stays as it is. Settings are those the oracle was designed with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dflash.data.rollouts import Rollout
from dflash.decoding import dflash_generate, replay
from dflash.model import DFlashDraftModel, TrainingLayout, drafter_config
from dflash.target.oracle import OracleTarget
from dflash.training.losses import block_loss, equal, label_weights
from tests.training.toys import features, switches

BLOCK, LENGTH, ROWS, STEPS = 4, 26, 32, 600
ANSWER = LENGTH - 2
GOOD, BROKEN = 0.9 * BLOCK, 0.75 * BLOCK
TARGET = OracleTarget()
TAP = TARGET.design.tap


def held_out() -> list[Rollout]:
    """Answers in closed form to prompts whose key tokens no training row shows."""
    design = TARGET.design
    return [
        Rollout(
            f"{index}",
            "oracle",
            0,
            np.array(design.prompt(index % design.keys, 5 * index), dtype=np.int32),
            np.array(design.answer(index % design.keys, 5 * index, ANSWER), dtype=np.int32),
            "length",
        )
        for index in range(12)
    ]


def trained(shift: int = 0, **given: Any) -> DFlashDraftModel:
    """A drafter trained on fresh rows; ``shift`` plants labels that are off by so many tokens."""
    parsed = switches(num_layers=2, block_size=BLOCK, features={"taps": (TAP,)}, **given)
    config = drafter_config(TARGET.model.config, parsed, TARGET.design.mask_token_id)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    drafter = DFlashDraftModel(config).train()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (1 - 0.9 * step / STEPS)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        loss_of(drafter, generator, shift).backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return drafter.eval()


def loss_of(drafter: DFlashDraftModel, generator: torch.Generator, shift: int) -> torch.Tensor:
    tokens, anchors = TARGET.design.training_rows(ROWS, LENGTH, BLOCK, generator)
    layout = TrainingLayout(
        LENGTH, anchors, torch.ones_like(anchors).bool(), torch.full((ROWS,), LENGTH), BLOCK
    )
    noise = drafter.embed_block(tokens.gather(1, anchors), TARGET.embedding)  # [B, N, slots, H]
    hidden = drafter(
        position_ids=layout.position_ids(),
        attention_mask=layout.mask(drafter.switches, "sdpa"),
        noise_embedding=noise.flatten(1, 2),
        target_hidden=TARGET.features(tokens, drafter.target_layer_ids),
    ).view(noise.shape)
    index = (anchors[..., None] + torch.arange(BLOCK) + shift).clamp(max=LENGTH - 1)
    labels = tokens[torch.arange(ROWS)[:, None, None], index]
    weights = label_weights(labels, equal(BLOCK, 1.0))
    return block_loss(hidden, TARGET.head.weight, None, labels, weights) / weights.sum()


def tau(drafter: DFlashDraftModel) -> float:
    """Mean acceptance length of real decoding over held-out prompts."""
    lengths: list[int] = []
    for rollout in held_out():
        prompt = torch.as_tensor(rollout.prompt_ids).long()[None]
        decoded = dflash_generate(drafter, TARGET, prompt, ANSWER, return_stats=True)
        assert decoded.output_ids[0].tolist() == rollout.token_ids.tolist()  # lossless, always
        lengths += decoded.acceptance_lengths[:-1]  # the last block is cut
    return sum(lengths) / len(lengths)


@pytest.fixture(scope="module")
def drafter():
    return trained()


def test_a_right_drafter_is_accepted_block_by_block(drafter):
    assert tau(drafter) >= GOOD


def test_replay_sees_the_same(drafter):
    answers = held_out()
    rows = replay(drafter, TARGET, answers, features(TARGET, answers, (TAP,)))
    steps = [step for row in rows for step in row.acceptance_lengths()[:-1]]
    assert sum(steps) / len(steps) == tau(drafter)


def tap_of(layer: int) -> Callable[[DFlashDraftModel], None]:
    def plant(drafter: DFlashDraftModel) -> None:
        drafter.target_layer_ids = (layer,)

    return plant


def swapped_keys_and_values(drafter: DFlashDraftModel) -> None:
    for layer in drafter.layers:
        right = layer.self_attn._keys_and_values
        layer.self_attn._keys_and_values = lambda *a, right=right: right(*a)[::-1]


def positions_off_by(offset: int) -> Callable[[DFlashDraftModel], None]:
    def plant(drafter: DFlashDraftModel) -> None:
        right = drafter.forward

        def forward(position_ids: torch.Tensor, noise_embedding: torch.Tensor, **rest: Any) -> Any:
            shifted = position_ids.clone()
            shifted[:, -noise_embedding.shape[1] :] += offset
            return right(position_ids=shifted, noise_embedding=noise_embedding, **rest)

        drafter.forward = forward

    return plant


DECODING_BUGS = {
    "tap below": tap_of(TAP - 1),
    "tap above": tap_of(TAP + 1),
    "keys and values swapped": swapped_keys_and_values,
    "positions one late": positions_off_by(1),
    "positions one early": positions_off_by(-1),
}


@pytest.mark.parametrize("bug", DECODING_BUGS)
def test_a_bug_in_decoding_costs_acceptance(drafter, bug):
    broken = copy.deepcopy(drafter)
    DECODING_BUGS[bug](broken)
    assert tau(broken) < BROKEN


def test_labels_shifted_by_one_cost_acceptance():
    assert tau(trained(shift=1)) < BROKEN


@pytest.mark.parametrize("leak", [1, 1000], ids=["context up to the anchor", "no anchor mask"])
def test_context_at_the_anchor_in_training_costs_acceptance(leak):
    assert tau(trained(attention={"leak": leak})) < BROKEN
