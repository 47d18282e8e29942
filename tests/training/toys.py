"""A toy target, its answers and features, and a recipe of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash.data.features import OnlineFeatures
from dflash.data.generate import generate_batch
from dflash.data.rollouts import Rollout
from dflash.model import DFlashDraftModel, DrafterSwitches, parse_dataclass
from dflash.target import Target
from dflash.training.config import TrainConfig
from dflash.training.run import TrainResult, train_drafter
from tests.data.toys import small_target
from tests.decoding.toys import Rows

TAPS = (0, 2)
SMALL: dict[str, Any] = {"num_layers": 1, "block_size": 4, "features": {"taps": TAPS}}


def toy(**options: Any) -> Target:
    """Random weights, 24 tokens, no stop token in sight."""
    return small_target(vocab=24, stop=(23,), **options)


def switches(**given: Any) -> DrafterSwitches:
    """One layer, blocks of four, two taps, unless said otherwise."""
    return parse_dataclass(DrafterSwitches, {**SMALL, **given}, "drafter")


def recipe(**given: Any) -> TrainConfig:
    """Fast and exact on a CPU, unless said otherwise."""
    base = {"steps": 3, "sequences": 4, "anchors_per_sequence": 3, "precision": "32-true"}
    return parse_dataclass(TrainConfig, {**base, **given}, "train")


def answers(target: Target, shapes: Sequence[tuple[int, int]], seed: int = 0) -> list[Rollout]:
    """The target's own greedy answers of the given lengths to random prompts of given lengths."""
    generator = np.random.default_rng(seed)
    rollouts = []
    for index, (prompt, answer) in enumerate(shapes):
        ids = generator.integers(0, 20, prompt).astype(np.int32)
        said = generate_batch(target, [ids], answer)[0]
        rollouts.append(Rollout(f"toy/{index}", "toy", 0, ids, said, "length"))
    return rollouts


def features(target: Target, rollouts: Sequence[Rollout], taps: Sequence[int] = TAPS) -> Rows:
    """Tapped states, in memory."""
    online = OnlineFeatures(target, rollouts, taps, "float32")
    return Rows([online.row(index) for index in range(len(rollouts))])


SHAPES = [(3, 9), (2, 6), (5, 12), (4, 7), (1, 10), (6, 5), (2, 8), (3, 11)]


def train(
    directory: Path,
    target: Target,
    rollouts: Sequence[Rollout],
    config: TrainConfig | None = None,
    seed: int = 0,
    rows: Rows | None = None,
    **given: Any,
) -> TrainResult:
    """Train a drafter with the given switches."""
    chosen = switches(**given)
    source = rows or features(target, rollouts, chosen.features.taps)
    return train_drafter(
        config or recipe(), chosen, target, rollouts, source, seed, directory, progress=False
    )


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    """The trained parameters."""
    return dict(DFlashDraftModel.from_pretrained(result.path).state_dict())


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    """Equal bit for bit, name by name."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
