"""Peak memory of a training run, by part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from dflash.lab.plan.work import BYTES, CellWork, sequence_blocks
from dflash.model import DFlashDraftModel, TrainingLayout, drafter_config
from dflash.training.losses import CHUNK_ROWS

FORMULA = (
    "16 bytes a parameter (fp32 weights, gradients, Adam's two moments) + the target's weights + "
    "what the forward of train.attention=blocks saves for its backward, counted in fp32 on the "
    "longest sequences (bf16 needs less) + scores and softmax of one attention on its way back + "
    f"three times the logits of {CHUNK_ROWS} slots"
)


@dataclass(frozen=True)
class Memory:
    """Bytes by part."""

    states: int
    target: int
    activations: int
    backward: int
    logits: int

    @property
    def total(self) -> int:
        return self.states + self.target + self.activations + self.backward + self.logits


def training_memory(cell: CellWork) -> Memory:
    """An estimate for one device; the formula is ``FORMULA``."""
    train, sizes = cell.config.train, cell.sizes
    lengths = cell.sequences
    rows = min(train.micro_batch or train.sequences, train.sequences)
    context = int((lengths.prompt + lengths.answer).max(initial=1))
    longest = int(lengths.answer.max(initial=2))
    blocks = sequence_blocks(
        longest, train.anchors, train.anchors_per_sequence, cell.switches.block_size
    )
    slots = blocks * cell.switches.block_size
    keys = context * cell.switches.context_keys + cell.switches.block_size
    rows_of_head = cell.draft_vocab * min(CHUNK_ROWS, rows * slots)
    return Memory(
        states=16 * cell.parameters,
        target=sizes.parameters * BYTES[cell.config.target.dtype],
        activations=saved_bytes(cell, rows, context, blocks),
        backward=2 * 4 * rows * sizes.heads * slots * keys,
        logits=3 * 4 * rows_of_head,
    )


def saved_bytes(cell: CellWork, rows: int, context: int, blocks: int) -> int:
    """Bytes that the forward of ``rows`` sequences saves for the backward, in float32.

    The drafter runs on the meta device, which computes shapes and holds nothing.
    """
    saved: dict[int, Tensor] = {}  # alive, so that no two share an id
    own: set[int] = set()

    def remember(tensor: Tensor) -> Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in own:
            saved[id(base)] = base
        return tensor

    config = drafter_config(cell.info.hf_config, cell.switches, cell.config.target.mask_token_id)
    with torch.device("meta"):
        draft = DFlashDraftModel(config)
        own = {id(parameter) for parameter in draft.parameters()}
        anchors = torch.zeros(rows, blocks, dtype=torch.long)
        valid = torch.ones(rows, blocks, dtype=torch.bool)
        lengths = torch.full((rows,), context)
        layout = TrainingLayout(context, anchors, valid, lengths, cell.switches.block_size)
        width = cell.sizes.hidden
        noise = torch.zeros(rows, blocks * cell.switches.block_size, width)
        features = torch.zeros(
            rows, context, width * (len(cell.taps) if draft.reads_features else 1)
        )
        draft.config._attn_implementation = "blocks"
        with saved_tensors_hooks(remember, lambda tensor: tensor):
            draft(
                position_ids=layout.position_ids(),
                attention_mask=layout.mask(cell.switches, "blocks"),
                noise_embedding=noise,
                target_hidden=features,
            )
    return sum(tensor.numel() * tensor.element_size() for tensor in saved.values())
