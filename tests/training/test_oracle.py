"""T-ORACLE1: the stack against a target whose optimum is known.

Speculative decoding is lossless, so a broken drafter still gives right text, only slowly. The
oracle makes the slowness measurable: trained and decoded rightly, nearly every block is accepted
whole. Every planted bug must show. Each is planted in one place, in decoding or in training, while
the rest stays as it is.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dflash.data import collate
from dflash.data.anchors import labels_of
from dflash.data.rollouts import Rollout
from dflash.decoding import dflash_generate
from dflash.decoding.replay import replay
from dflash.model import DFlashDraftModel
from dflash.target.oracle import OracleTarget
from dflash.training import run
from tests.decoding.toys import Rows
from tests.training.toys import features, recipe, switches

BLOCK, LENGTH, ROWS = 4, 26, 2048
STEPS, SHORT = 360, 250
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


@functools.cache
def training_rollouts() -> list[Rollout]:
    """Rows with surprises at anchors: cut so that the answer starts at the first anchor."""
    generator = torch.Generator().manual_seed(0)
    tokens, anchors = TARGET.design.training_rows(ROWS, LENGTH, BLOCK, generator)
    rows = zip(tokens.numpy().astype(np.int32), anchors[:, 0].tolist(), strict=True)
    return [
        Rollout(str(index), "oracle", 0, row[:first], row[first:], "length")
        for index, (row, first) in enumerate(rows)
    ]


@functools.cache
def training_features(tap: int) -> Rows:
    """Computed once, all rows together: several drafters are trained on them."""
    tokens = np.stack([row.token_ids for row in training_rollouts()])
    return Rows(list(TARGET.features(torch.as_tensor(tokens).long(), (tap,))))


def trained(directory: Path, steps: int, tap: int = TAP, **given: Any) -> DFlashDraftModel:
    """A drafter as ``train_drafter`` leaves it; anchors are one block apart, as in the rows."""
    config_of = run.drafter_config

    def wider(*arguments: Any) -> Any:  # models this narrow start slowly from the usual spread
        config = config_of(*arguments)
        config.initializer_range = 0.05
        return config

    recipe_of_oracle = recipe(
        steps=steps,
        sequences=32,
        anchors="uniform",
        anchors_per_sequence=LENGTH,
        lr=4e-3,
        attention="sdpa",
        loss={"position": "none"},
    )
    chosen = {"num_layers": 2, "block_size": BLOCK, "vocab": f"top:{TARGET.design.symbols}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "drafter_config", wider)
        result = run.train_drafter(
            recipe_of_oracle,
            switches(features={"taps": (tap,)}, **chosen, **given),
            TARGET,
            training_rollouts(),
            training_features(tap),
            0,
            directory,
            progress=False,
        )
    return DFlashDraftModel.from_pretrained(result.path).eval()


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
def drafter(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("right"), STEPS)


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


# Bugs in training. A right drafter has reached 3.7 after SHORT steps, so what is missing then is
# missing because of the bug. Unlearning to look back takes a leaky one longer, the more it sees.


def test_labels_shifted_by_one_cost_acceptance(tmp_path, monkeypatch):
    def shifted(token_ids: Any, anchors: Any, block_size: int) -> Any:
        return np.roll(labels_of(token_ids, anchors, block_size + 1), -1, axis=1)[:, :-1]

    monkeypatch.setattr(collate, "labels_of", shifted)
    assert tau(trained(tmp_path, SHORT)) < BROKEN


def test_a_tap_off_by_one_costs_acceptance(tmp_path):
    assert tau(trained(tmp_path, SHORT, tap=TAP - 1)) < BROKEN


@pytest.mark.parametrize(
    ("leak", "steps"),
    [(1, 320), (1000, 600)],
    ids=["context up to the anchor", "no anchor mask"],
)
def test_context_at_the_anchor_in_training_costs_acceptance(tmp_path, leak, steps):
    assert tau(trained(tmp_path, steps, attention={"leak": leak})) < BROKEN
