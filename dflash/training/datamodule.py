"""The LightningDataModule: optimizer step ``s`` gets batch ``s``, also after a resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from dflash.data.collate import BlockBatch, BlockSampler, collate
from dflash.data.features import FeatureSource
from dflash.data.order import StepOrder
from dflash.data.rollouts import Rollout
from dflash.training.config import TrainConfig
from dflash.training.lockstep import Pace, alone


class StepBatches(Dataset[list[BlockBatch]]):
    """The batch of every optimizer step, a pure function of (seed, step)."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        features: FeatureSource | None,
        config: TrainConfig,
        block_size: int,
        seed: int,
        steps: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.rollouts, self.features, self.config = rollouts, features, config
        self.block_size, self.steps = block_size, steps
        lengths = [len(row.token_ids) for row in rollouts]
        self.order = StepOrder(lengths, config.sequences, seed)
        self.sampler = BlockSampler(config.anchors, block_size, config.anchors_per_sequence, seed)
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> list[BlockBatch]:
        """The micro-batches of this process."""
        rows = self.order.rows(step)[self.rank :: self.world_size]
        size = self.config.micro_batch or len(rows)
        starts = range(0, len(rows), size)
        return [self._micro(step, rows[start : start + size]) for start in starts]

    def _micro(self, step: int, rows: list[int]) -> BlockBatch:
        anchors = [self.sampler.anchors(self.rollouts[row], step, row) for row in rows]
        return collate(self.rollouts, self.features, rows, anchors, self.block_size)


class FromStep(Sampler[int]):
    """Steps in order, from the one that training has reached.

    Args:
        before: called with a step before its batch is made.
    """

    def __init__(self, module: L.LightningDataModule, steps: int, before: Pace) -> None:
        self.module, self.steps, self.before = module, steps, before

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        trainer = self.module.trainer
        for step in range(trainer.global_step if trainer else 0, self.steps):
            self.before(step)
            yield step


class DrafterData(L.LightningDataModule):
    """Feeds one run; ``before`` is called with every step before its batch is made."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        features: FeatureSource | None,
        config: TrainConfig,
        block_size: int,
        seed: int,
        steps: int,
        before: Pace = alone,
    ) -> None:
        super().__init__()
        self.rollouts, self.features, self.config = rollouts, features, config
        self.block_size, self.seed, self.steps = block_size, seed, steps
        self.before = before

    def train_dataloader(self) -> DataLoader[list[BlockBatch]]:
        """One item per optimizer step, micro-batches inside."""
        assert self.trainer is not None
        batches = StepBatches(
            self.rollouts,
            self.features,
            self.config,
            self.block_size,
            self.seed,
            self.steps,
            self.trainer.global_rank,
            self.trainer.world_size,
        )
        return DataLoader(batches, batch_size=None, sampler=FromStep(self, self.steps, self.before))

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> list[BlockBatch]:
        """Move the micro-batches."""
        return [part.to(device) for part in batch]
