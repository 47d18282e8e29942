"""Single optimizer steps, with their gradients laid open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from dflash.data.rollouts import Rollout
from dflash.target import Target
from dflash.training.config import TrainConfig
from dflash.training.datamodule import DrafterData
from dflash.training.module import Borrowed, DrafterTraining
from dflash.training.run import build_drafter, build_trainer
from tests.training.toys import features, recipe, switches


@dataclass
class Recorded(Callback):
    """Loss, supervised slots and gradients of every optimizer step, as the optimizer sees them."""

    path: Path | None = None  # also written here, for other processes to read
    losses: list[float] = field(default_factory=list)
    supervised: list[int] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        named = pl_module.drafter.named_parameters()
        self.gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})

    def on_train_batch_end(self, trainer: L.Trainer, *rest: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["loss"]))
        self.supervised.append(int(trainer.callback_metrics["supervised"]))
        if self.path is not None and trainer.is_global_zero:
            torch.save((self.losses, self.supervised, self.gradients), self.path)


def training(
    target: Target,
    rollouts: Sequence[Rollout],
    config: TrainConfig | None = None,
    seed: int = 0,
    **given: Any,
) -> DrafterTraining:
    """The module of a run, at its starting values."""
    config = config or recipe()
    drafter = build_drafter(switches(**given), target, rollouts, config, seed)
    drafter.config._attn_implementation = config.attention
    return DrafterTraining(
        drafter, Borrowed(target.embedding, target.head), config, config.steps or 1
    )


def run_steps(
    module: DrafterTraining,
    target: Target,
    rollouts: Sequence[Rollout],
    directory: Path,
    path: Path | None = None,
) -> Recorded:
    """Train a module for the steps of its recipe."""
    recorded = Recorded(path)
    source = features(target, rollouts, module.drafter.target_layer_ids)
    block_size = module.drafter.block_size
    data = DrafterData(rollouts, source, module.config, block_size, 0, module.steps)
    trainer = build_trainer(
        module.config, module.steps, directory, [recorded], target.device, progress=False
    )
    trainer.fit(module, data)
    return recorded
