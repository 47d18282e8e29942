"""One training batch: right-padded sequences with their features, anchors and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from dflash.data.anchors import ANCHOR_RULES, eligible, generator_for, labels_of
from dflash.data.features import FeatureSource
from dflash.data.rollouts import Rollout


@dataclass(frozen=True)
class BlockBatch:
    """B sequences of up to C tokens, with up to N anchored blocks each.

    Attributes:
        token_ids: ``[B, C]`` long; positions at or after ``lengths`` are padding (zeros).
        features: ``[B, C, F*H]`` float32, or None for drafters that read no features.
        lengths: ``[B]`` long.
        anchors: ``[B, N]`` long, absolute positions; 0 where not ``valid``.
        valid: ``[B, N]`` bool.
        labels: ``[B, N, block_size]`` long token ids; -100 where nothing is supervised.
    """

    token_ids: Tensor
    features: Tensor | None
    lengths: Tensor
    anchors: Tensor
    valid: Tensor
    labels: Tensor

    def to(self, device: torch.device | str) -> BlockBatch:
        """The same batch on another device (Lightning calls this)."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: value.to(device) for name, value in values.items() if value is not None}
        return replace(self, **moved)

    @property
    def anchor_ids(self) -> Tensor:
        """``[B, N]`` token ids at the anchors."""
        return self.token_ids.gather(1, self.anchors)


@dataclass(frozen=True)
class BlockSampler:
    """Draws the anchors of a sequence; a pure function of (seed, step, row)."""

    rule: str
    block_size: int
    count: int
    seed: int

    def anchors(self, rollout: Rollout, step: int, row: int) -> np.ndarray:
        """Sorted anchor positions of one sequence in one step."""
        positions = eligible(len(rollout.prompt_ids), len(rollout.answer_ids))
        generator = generator_for("anchors", self.seed, step, row)
        return ANCHOR_RULES[self.rule](positions, self.block_size, self.count, generator)


def collate(
    rollouts: Sequence[Rollout],
    features: FeatureSource | None,
    rows: Sequence[int],
    anchors: Sequence[np.ndarray],
    block_size: int,
) -> BlockBatch:
    """Assemble the sequences ``rows`` with their ``anchors``."""
    lengths = [len(rollouts[row].token_ids) for row in rows]
    blocks = max(1, *(len(chosen) for chosen in anchors))
    longest = max(lengths)
    batch = len(rows)
    token_ids = torch.zeros(batch, longest, dtype=torch.long)
    positions = torch.zeros(batch, blocks, dtype=torch.long)
    valid = torch.zeros(batch, blocks, dtype=torch.bool)
    labels = torch.full((batch, blocks, block_size), -100)
    wide: Tensor | None = None
    for index, row in enumerate(rows):
        ids = rollouts[row].token_ids
        token_ids[index, : len(ids)] = torch.as_tensor(ids)
        count = len(anchors[index])
        positions[index, :count] = torch.as_tensor(anchors[index])
        valid[index, :count] = True
        labels[index, :count] = torch.as_tensor(labels_of(ids, anchors[index], block_size))
        if features is not None:
            states = features.row(row)
            if wide is None:
                wide = torch.zeros(batch, longest, states.shape[-1])
            wide[index, : len(ids)] = states
    return BlockBatch(token_ids, wide, torch.tensor(lengths), positions, valid, labels)
