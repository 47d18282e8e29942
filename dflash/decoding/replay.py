"""Acceptance without the target (design §7).

At temperature 0 speculative decoding outputs the target's own answer, so with the answer and its
features at hand acceptance is a question to the drafter alone: how many leading slots of the block
at anchor p equal the answer? Replay asks it for every anchor of every answer, many blocks per
forward in the training layout, and then walks the chain of anchors that decoding would have stepped
on. For answers sampled from the target the walk is exact in distribution for ``verify="match"``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dflash.decoding.cached import causal_lm_of, evaluating
from dflash.decoding.proposal import argmax_tokens, embedded_blocks, embedded_context
from dflash.decoding.rows import Answered, ReplayRow, slot_labels
from dflash.model import DFlashDraftModel, DrafterSwitches, TrainingLayout, UserError
from dflash.target import Target

__all__ = ["FeatureRows", "match_lengths", "replay"]

Slots = Literal["reached", "all"]
ATTENTION = "blocks"
LOGIT_ELEMENTS = 2**24  # logits held at once: 64 MiB in fp32
QUERY_ROWS = 2048  # block slots per drafter forward


class FeatureRows(Protocol):
    """Tapped target states of whole sequences, prompt and answer."""

    def row(self, index: int) -> Tensor:
        """``[T, F*H]``"""
        ...


@dataclass(frozen=True)
class _Piece:
    """Consecutive anchors of one rollout."""

    rollout: int
    first: int  # answer index of the first anchor
    count: int
    context: int  # tokens before the last anchor


def match_lengths(
    hidden: Tensor,
    labels: Tensor,
    drafter: DFlashDraftModel,
    head: nn.Module,
    slots: Slots = "reached",
) -> tuple[Tensor, Tensor | None]:
    """Leading slots of each block whose argmax is the label.

    Args:
        hidden: the drafter's output at slots 1 … K of each block. ``[M, K, H]``
        labels: token id behind each slot, -1 where the answer has ended. ``[M, K]``
        drafter: turns hidden states into draft logits and draft ids into token ids.
        head: the target's output head.
        slots: ``reached`` computes logits of slot k only for blocks whose slots before k are right,
            which is all that match lengths need; ``all`` computes every labelled slot.

    Returns:
        Match lengths ``[M]``, and with ``all`` the correctness of every slot ``[M, K]`` else None.
    """
    right = torch.zeros_like(labels, dtype=torch.bool)
    if slots == "all":
        block, slot = (labels >= 0).nonzero(as_tuple=True)
        right[block, slot] = _is_right(hidden, labels, block, slot, drafter, head)
    else:
        alive = torch.arange(len(labels), device=labels.device)
        for k in range(labels.shape[1]):
            alive = alive[labels[alive, k] >= 0]
            if not len(alive):
                break
            slot = torch.full_like(alive, k)
            right[alive, k] = _is_right(hidden, labels, alive, slot, drafter, head)
            alive = alive[right[alive, k]]
    match = right.long().cumprod(dim=1).sum(dim=1)
    return match, right if slots == "all" else None


def _is_right(
    hidden: Tensor,
    labels: Tensor,
    block: Tensor,
    slot: Tensor,
    drafter: DFlashDraftModel,
    head: nn.Module,
) -> Tensor:
    """Is the argmax at (block, slot) its label? In chunks, so that few logits exist at once."""
    right = torch.empty(len(block), dtype=torch.bool, device=labels.device)
    chunk = max(1, LOGIT_ELEMENTS // drafter.config.vocab_size)
    for start in range(0, len(block), chunk):
        rows, slots = block[start : start + chunk], slot[start : start + chunk]
        tokens = argmax_tokens(drafter, hidden[rows, slots], head)  # [chunk]
        right[start : start + chunk] = tokens == labels[rows, slots]
    return right


@torch.inference_mode()
def replay(
    drafter: DFlashDraftModel,
    target: Target | PreTrainedModel,
    rollouts: Sequence[Answered],
    features: FeatureRows | None,
    width: int | None = None,
    slots: Slots = "reached",
) -> list[ReplayRow]:
    """Match lengths of every anchor of every answer.

    Equal to what ``dflash_generate`` does on the same prompts where the answers are the target's
    own greedy ones and drafter, target and features are fp32.

    Args:
        drafter: the drafter; of its switches only ``attention.leak`` is off here, since decoding
            has nothing to leak.
        target: lends its embedding and head.
        rollouts: prompts with the target's answers.
        features: row i covers all tokens of ``rollouts[i]``; None when the drafter reads none.
        width: widest verification of interest, anchor included; None is the trained block. Narrower
            ones come free from ``ReplayRow.at_width``.
        slots: see ``match_lengths``; ``all`` is needed for marginal counts.

    Returns:
        One row per rollout, in order.

    Raises:
        UserError: width out of range, or features that do not belong to the rollouts.
    """
    width = drafter.block_size if width is None else width
    if not 1 <= width <= drafter.block_size:
        raise UserError.of("width", width, f"1 to {drafter.block_size}, the trained block")
    if drafter.reads_features and features is None:
        raise UserError.of("features", None, "the target's features unless kv.fusion=none")
    model = causal_lm_of(target)
    runner = _Replay(
        drafter=drafter,
        switches=_without_leak(drafter.switches),
        embedding=model.get_input_embeddings(),
        head=model.get_output_embeddings(),
        rollouts=rollouts,
        features=features if drafter.reads_features else None,
        width=width,
        slots=slots,
    )
    match = [np.zeros(max(len(r.answer_ids) - 1, 0), dtype=np.int64) for r in rollouts]
    right = [np.zeros((len(m), width - 1), dtype=bool) for m in match]
    with evaluating(drafter), attending_by(drafter, ATTENTION):
        for batch in _batches(rollouts, drafter.block_size):
            for piece, lengths, correct in runner.run(batch):
                where = slice(piece.first, piece.first + piece.count)
                match[piece.rollout][where] = lengths.cpu().numpy()
                if correct is not None:
                    right[piece.rollout][where] = correct.cpu().numpy()
    return [
        ReplayRow(
            prompt_id=rollout.prompt_id,
            domain=rollout.domain,
            turn=rollout.turn,
            width=width,
            match=match[index],
            answer_length=len(rollout.answer_ids),
            right=right[index] if slots == "all" else None,
        )
        for index, rollout in enumerate(rollouts)
    ]


def _without_leak(switches: DrafterSwitches) -> DrafterSwitches:
    attention = dataclasses.replace(switches.attention, leak=0)
    return dataclasses.replace(switches, attention=attention)


@contextlib.contextmanager
def attending_by(drafter: DFlashDraftModel, implementation: str) -> Iterator[None]:
    """Another attention implementation inside, the drafter's own again afterwards."""
    own = drafter.config._attn_implementation
    drafter.set_attn_implementation(implementation)
    try:
        yield
    finally:
        drafter.set_attn_implementation(own)


def _batches(rollouts: Sequence[Answered], block_size: int) -> Iterator[list[_Piece]]:
    """Pieces of similar context length, about ``QUERY_ROWS`` block slots to a batch."""
    most = max(1, QUERY_ROWS // block_size)
    pieces = []
    for index, rollout in enumerate(rollouts):
        prompt, anchors = len(rollout.prompt_ids), len(rollout.answer_ids) - 1
        for first in range(0, anchors, most):
            count = min(most, anchors - first)
            pieces.append(_Piece(index, first, count, prompt + first + count - 1))
    pieces.sort(key=lambda piece: (piece.context, piece.count))
    batch: list[_Piece] = []
    for piece in pieces:
        padded = max([piece.count, *(other.count for other in batch)])
        if batch and padded * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


@dataclass(frozen=True)
class _Replay:
    drafter: DFlashDraftModel
    switches: DrafterSwitches
    embedding: nn.Module
    head: nn.Module
    rollouts: Sequence[Answered]
    features: FeatureRows | None
    width: int
    slots: Slots

    def run(self, batch: list[_Piece]) -> Iterator[tuple[_Piece, Tensor, Tensor | None]]:
        """(piece, match lengths ``[count]``, correctness ``[count, width-1]``) of one batch."""
        valid, hidden = self._draft(batch)  # [b, N], [b, N, B, H]
        labels = torch.full((*valid.shape, self.width - 1), -1)
        for row, piece in enumerate(batch):
            known = slot_labels(np.asarray(self.rollouts[piece.rollout].answer_ids), self.width - 1)
            labels[row, : piece.count] = torch.from_numpy(
                known[piece.first : piece.first + piece.count].copy()
            )
        own = hidden[valid][:, 1 : self.width]  # [M, width-1, H]
        match, right = match_lengths(
            own, labels.to(own.device)[valid], self.drafter, self.head, self.slots
        )
        sizes = [piece.count for piece in batch]
        rights = [None] * len(batch) if right is None else right.split(sizes)
        yield from zip(batch, match.split(sizes), rights, strict=True)

    def _draft(self, batch: list[_Piece]) -> tuple[Tensor, Tensor]:
        """Which anchors are real ``[b, N]``, and the blocks' hidden states ``[b, N, B, H]``."""
        drafter, device = self.drafter, self.drafter.device
        context, blocks = max(p.context for p in batch), max(p.count for p in batch)
        tokens = torch.zeros(len(batch), context, dtype=torch.long)
        anchors = torch.zeros(len(batch), blocks, dtype=torch.long)
        anchor_ids = torch.zeros_like(anchors)
        for row, piece in enumerate(batch):
            rollout = self.rollouts[piece.rollout]
            sequence = np.concatenate([rollout.prompt_ids, rollout.answer_ids]).astype(np.int64)
            first = len(rollout.prompt_ids) + piece.first
            tokens[row, : piece.context] = torch.from_numpy(sequence[: piece.context])
            anchors[row, : piece.count] = torch.arange(first, first + piece.count)
            anchor_ids[row, : piece.count] = torch.from_numpy(sequence[first : first + piece.count])
        counts = torch.tensor([[p.count] for p in batch])
        valid = (torch.arange(blocks) < counts).to(device)
        layout = TrainingLayout(
            context_length=context,
            anchors=anchors.to(device),
            valid=valid,
            lengths=torch.tensor([p.context for p in batch], device=device),
            block_size=drafter.block_size,
        )
        hidden = drafter(
            position_ids=layout.position_ids(),
            attention_mask=layout.mask(self.switches, ATTENTION),
            noise_embedding=embedded_blocks(drafter, anchor_ids.to(device), self.embedding),
            target_hidden=embedded_context(
                drafter, tokens.to(device), self._features(batch, context), self.embedding
            ),
        )  # [b, N*B, H]
        return valid, hidden.unflatten(1, (blocks, drafter.block_size))

    def _features(self, batch: list[_Piece], context: int) -> Tensor | None:
        """Features before the last anchor, right-padded with zeros. ``[b, C, F*H]``"""
        if self.features is None:
            return None
        rows = [self.features.row(piece.rollout) for piece in batch]
        for piece, row in zip(batch, rows, strict=True):
            rollout = self.rollouts[piece.rollout]
            length = len(rollout.prompt_ids) + len(rollout.answer_ids)
            if len(row) != length:
                raise UserError.of(
                    f"len(features.row({piece.rollout}))", len(row), f"{length} rows, its tokens"
                )
        padded = rows[0].new_zeros(len(batch), context, rows[0].shape[-1])
        for index, (piece, row) in enumerate(zip(batch, rows, strict=True)):
            padded[index, : piece.context] = row[: piece.context]
        return padded.to(self.drafter.device)
