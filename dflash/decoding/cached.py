"""The two models of the decode loop, each behind its key/value cache.

Both caches hold exactly the committed tokens before the anchor when a step begins. The target's is
cut back to that after every verification; the drafter's keeps the context it was given and drops
the block it drafted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from dflash.decoding.proposal import argmax_tokens, embedded_blocks, embedded_context
from dflash.model import DFlashDraftModel, UserError, crop_to, new_cache
from dflash.target import TapRecorder, Target

__all__ = [
    "CachedDrafter",
    "CachedTarget",
    "Clock",
    "causal_lm_of",
    "check_prompt",
    "evaluating",
]


def causal_lm_of(target: Target | PreTrainedModel) -> PreTrainedModel:
    """The Hugging Face causal language model inside ``target``, or ``target`` itself."""
    return target.model if isinstance(target, Target) else target


class Clock:
    """Wall-clock seconds with the device's queue drained first, so that a lap is work done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


@contextlib.contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, each module's own mode again afterwards."""
    modes = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.train(mode)


class CachedTarget:
    """The target, one row, fed token by token or block by block."""

    def __init__(self, model: PreTrainedModel, taps: TapRecorder | None) -> None:
        self._model = model
        self._taps = taps
        self._cache = DynamicCache(config=model.config)
        # Sliding-window layers forget what left the window unless told that they will be cropped.
        self._cache.activate_past_recording()

    def forward(self, tokens: Sequence[int], logits_to_keep: int = 0) -> Tensor:
        """Append tokens and predict.

        Args:
            tokens: T of them, following what the cache holds.
            logits_to_keep: number of last positions to predict at; 0 is all.

        Returns:
            Logits. ``[T or logits_to_keep, V]``
        """
        start = self._cache.get_seq_length()
        token_ids = torch.tensor([tokens], device=self._model.device)  # [1, T]
        positions = torch.arange(start, start + len(tokens), device=token_ids.device)
        output = self._model(
            input_ids=token_ids,
            position_ids=positions[None],
            cache=self._cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        logits: Tensor = output.logits[0]
        return logits

    def features(self) -> Tensor | None:
        """Tapped states of the tokens of the last forward, None without taps. ``[1, T, F*H]``"""
        return None if self._taps is None else self._taps.features()

    def crop(self, length: int) -> None:
        """Forget every position from ``length`` on."""
        crop_to(self._cache, length)


class CachedDrafter:
    """The drafter, one row, with the context it was given so far."""

    def __init__(self, draft: DFlashDraftModel, model: PreTrainedModel) -> None:
        self._draft = draft
        self._embedding: nn.Module = model.get_input_embeddings()
        self._head: nn.Module = model.get_output_embeddings()
        self._cache = new_cache()
        self._context = 0  # committed positions given to the drafter so far

    def propose(self, tokens: Sequence[int], features: Tensor | None, slots: int) -> list[int]:
        """Draft one whole block behind the anchor and read its first slots.

        Args:
            tokens: every committed token; the last of them is the anchor.
            features: the target's tapped states at the tokens committed since the last call, but
                for the anchor; None when the drafter reads none. ``[1, C, F*H]``
            slots: how many of the block's B−1 drafted tokens are wanted.

        Returns:
            Argmax tokens of slots 1 … ``slots``.
        """
        draft, device = self._draft, self._draft.device
        anchor = len(tokens) - 1
        ids = torch.tensor([tokens[self._context :]], device=device)  # [1, C + 1], anchor last
        positions = torch.arange(self._context, anchor + draft.block_size, device=device)
        hidden = draft(
            position_ids=positions[None],  # [1, C + B]
            noise_embedding=embedded_blocks(draft, ids[:, -1:], self._embedding),  # [1, B, H]
            target_hidden=embedded_context(draft, ids[:, :-1], features, self._embedding),
            past_key_values=self._cache,
            use_cache=True,
        )  # [1, B, H]
        self._context = anchor
        crop_to(self._cache, anchor)
        proposal: list[int] = argmax_tokens(draft, hidden[0, 1 : slots + 1], self._head).tolist()
        return proposal


def check_prompt(input_ids: Tensor, max_new_tokens: int, limit: int | None) -> None:
    """Refuse prompts that cannot be continued.

    Raises:
        UserError: not one row, empty, negative ``max_new_tokens``, or beyond the target's context.
    """
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise UserError.of("input_ids.shape", tuple(input_ids.shape), "one row, [1, P]")
    length = input_ids.shape[1]
    if length == 0:
        raise UserError.of("prompt", "", "at least one token")
    if max_new_tokens < 0:
        raise UserError.of("max_new_tokens", max_new_tokens, "0 or a positive integer")
    if limit is not None and length + max_new_tokens > limit:
        raise UserError(
            f"a prompt of {length} tokens and max_new_tokens={max_new_tokens} do not fit; "
            f"allowed: {limit} tokens in all, the target's context"
        )
