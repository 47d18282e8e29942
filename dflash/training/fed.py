"""What a run was really fed and started from, as hashes, so that matched arms can be proved.

The hashes are taken of the batches that reached the optimizer step, not of what should have been
drawn. Each is a chain over steps that is part of every resume point; it depends neither on
micro-batches nor on padding nor on the number of processes.
"""

from __future__ import annotations

import hashlib
import json
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from dflash.data.collate import BlockBatch
from dflash.target.files import replacing
from dflash.training.record import FED_HASHES

DIGITS = 16  # of a recorded hash: 64 bits
SAMPLED = 4  # positions of a sequence whose features are hashed, others in every step


class Row(NamedTuple):
    """Hashes of one sequence of one step; ``features`` is empty when none were read."""

    order: str
    anchors: str
    features: str


class FeedRecord(Callback):
    """Hashes every batch after its step, and the parameters before the first.

    The record is left in a file, since the trainer may have worked in other processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chain: list[Row] = []  # what was fed up to every step
        self.init: dict[str, str] = {}

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        # before a resume point is loaded, whose record then replaces this one
        self.init = parameter_hashes(pl_module.drafter)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: list[BlockBatch],
        batch_idx: int,
    ) -> None:
        own = [row for part in batch for row in row_hashes(part, trainer.global_step)]
        rows = gathered(own, trainer.world_size)
        before = self.chain[-1] if self.chain else Row("", "", "")
        self.chain.append(Row(*map(chained, before, zip(*rows, strict=True))))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            with replacing(self.path) as place:
                place.write_text(json.dumps(self.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        return {
            **dict(zip(FED_HASHES, self.chain[-1], strict=True)),
            "chain": [list(row) for row in self.chain],
            "init_hash": _short(json.dumps(self.init, sort_keys=True).encode()),
            "init": self.init,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.chain = [Row(*row) for row in state_dict["chain"]]
        self.init = state_dict["init"]


def row_hashes(batch: BlockBatch, step: int) -> list[Row]:
    """Token ids, anchors and sampled features of every sequence of a micro-batch.

    Of the features it takes ``SAMPLED`` positions spread over the sequence, which move with
    ``step``: every channel of every tap, at a cost that does not grow with the length.
    """
    tokens, anchors, valid = (
        part.cpu().numpy() for part in (batch.token_ids, batch.anchors, batch.valid)
    )
    rows = []
    for index, length in enumerate(batch.lengths.tolist()):
        features = ""
        if batch.features is not None:
            positions = [(step + part * length // SAMPLED) % length for part in range(SAMPLED)]
            features = _hash(batch.features[index, positions].cpu().numpy())
        order, starts = tokens[index, :length], anchors[index][valid[index]]
        rows.append(Row(_hash(order), _hash(starts), features))
    return rows


def gathered(rows: list[Row], world_size: int) -> list[Row]:
    """The rows of all processes in the step's order: process r holds rows r, r + world size, …"""
    if world_size == 1:
        return rows
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, rows)
    return [row for group in zip_longest(*parts) for row in group if row is not None]


def chained(before: str, rows: tuple[str, ...]) -> str:
    """The hash of all steps from that of the earlier ones; empty while nothing was read."""
    return _short("/".join([before, *rows]).encode()) if any(rows) else before


def parameter_hashes(module: nn.Module) -> dict[str, str]:
    """Parameter name -> ``<shape>:<hash of its values>``, e.g. ``32x64:0123456789abcdef``."""
    return {name: _described(value.detach()) for name, value in module.named_parameters()}


def _described(value: Tensor) -> str:
    return f"{'x'.join(map(str, value.shape))}:{_hash(value.float().cpu().numpy())}"


def _hash(values: np.ndarray[Any, Any]) -> str:
    return _short(np.ascontiguousarray(values).tobytes())


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
