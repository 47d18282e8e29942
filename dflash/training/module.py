"""The LightningModule: it wires drafter, loss and optimizer, and computes nothing of its own."""

from __future__ import annotations

from typing import cast

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from dflash.data.collate import BlockBatch
from dflash.model import DFlashDraftModel, TrainingLayout
from dflash.training.config import TrainConfig
from dflash.training.losses import IGNORED, POSITION_WEIGHTS, block_loss, label_weights
from dflash.training.optim import build_optimizer, build_schedule
from dflash.training.sharding import is_sharded, shard


class Borrowed:
    """Holds the target's frozen modules out of ``nn.Module``'s sight: they are lent, not ours.

    So they are in no optimizer, no checkpoint and no gradient reduction.
    """

    def __init__(self, embedding: nn.Module, head: nn.Module) -> None:
        self.embedding = embedding
        self.head = head


class DrafterTraining(L.LightningModule):
    """Trains one drafter on batches of anchored blocks."""

    position_weights: Tensor  # [block_size]
    rows_of_tokens: Tensor | None  # [V], see token_rows

    def __init__(
        self, drafter: DFlashDraftModel, borrowed: Borrowed, config: TrainConfig, steps: int
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.drafter = drafter
        self.borrowed = borrowed
        self.config = config
        self.steps = steps
        gamma = config.loss.gamma_for(drafter.block_size)
        weights = POSITION_WEIGHTS[config.loss.position](drafter.block_size, gamma)
        self.register_buffer("position_weights", weights, persistent=False)
        self.register_buffer("rows_of_tokens", token_rows(drafter), persistent=False)

    def configure_model(self) -> None:
        """Spread the drafter over the processes where the strategy is to shard it."""
        if self.device_mesh is not None and not is_sharded(self.drafter):
            shard(self.drafter, self.device_mesh["data_parallel"])

    def training_step(self, batch: list[BlockBatch], batch_idx: int) -> None:
        """One optimizer step: the micro-batches of the global batch, their losses added up."""
        optimizer = cast(LightningOptimizer, self.optimizers())
        scheduler = cast(LambdaLR, self.lr_schedulers())
        labels = [self.draft_labels(part.labels) for part in batch]
        weights = [label_weights(part, self.position_weights) for part in labels]
        total = self.global_sum(torch.stack([part.sum() for part in weights]).sum())
        total = torch.where(total > 0, total, 1.0)  # nothing supervised anywhere: a loss of zero
        loss = torch.zeros((), device=self.device)
        for index, part in enumerate(batch):
            last = index == len(batch) - 1
            with optimizer.toggle_model(sync_grad=last):
                numerator = self.numerator(part, labels[index], weights[index])
                # processes average their gradients, hence the world size
                self.manual_backward(numerator * self.trainer.world_size / total)
            loss += numerator.detach()
        # not Lightning's clipping: under autocast it refuses fused optimizers, for fear of a scaler
        nn.utils.clip_grad_norm_(self.drafter.parameters(), self.config.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        loss = self.global_sum(loss) / total
        supervised = self.global_sum(torch.stack([(part > 0).sum() for part in weights]).sum())
        self.log("loss", loss, prog_bar=True)
        self.log("supervised", supervised.float())
        self.log("lr", scheduler.get_last_lr()[0])

    def numerator(self, batch: BlockBatch, labels: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of slot losses of one micro-batch."""
        idle = not bool((weights > 0).any())  # nothing supervised here: a zero with a graph
        if idle and not is_sharded(self.drafter):  # whose processes gather parameters together
            return sum(p.sum() for p in self.drafter.parameters() if p.requires_grad) * 0.0
        hidden = block_states(self.drafter, batch, self.borrowed.embedding, self.config.attention)
        weight, bias = self.drafter.head_rows(self.borrowed.head)
        return block_loss(hidden, weight, bias, labels, weights)

    def draft_labels(self, labels: Tensor) -> Tensor:
        """Token ids as rows of the draft head; tokens outside its vocabulary are unsupervised."""
        if self.rows_of_tokens is None:
            return labels
        return torch.where(labels == IGNORED, IGNORED, self.rows_of_tokens[labels.clamp(min=0)])

    def global_sum(self, value: Tensor) -> Tensor:
        """Sum over processes."""
        return cast(Tensor, self.trainer.strategy.reduce(value, reduce_op="sum"))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW with warm-up and cosine."""
        optimizer = build_optimizer(self.drafter, self.config)
        return {
            "optimizer": optimizer,
            "lr_scheduler": build_schedule(optimizer, self.steps, self.config),
        }


def block_states(
    drafter: DFlashDraftModel, batch: BlockBatch, embedding: nn.Module, attention: str
) -> Tensor:
    """The drafter's hidden states of all blocks in the training layout, ``[B, N, slots, H]``."""
    layout = TrainingLayout(
        batch.token_ids.shape[1], batch.anchors, batch.valid, batch.lengths, drafter.block_size
    )
    noise = drafter.embed_block(batch.anchor_ids, embedding)  # [B, N, slots, H]
    hidden = drafter(
        position_ids=layout.position_ids(),
        attention_mask=layout.mask(drafter.switches, attention),
        noise_embedding=noise.flatten(1, 2),
        target_hidden=drafter.context_of(batch.token_ids, batch.features, embedding),
    )
    return hidden.unflatten(1, noise.shape[1:3])


def token_rows(drafter: DFlashDraftModel) -> Tensor | None:
    """``[V]`` row of the draft head of each token id, -100 outside the draft vocabulary."""
    index = drafter.vocab_index
    if index is None:
        return None
    rows = torch.full((drafter.config.vocab_size,), IGNORED)
    rows[index] = torch.arange(len(index))
    return rows
