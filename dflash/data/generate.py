"""Batched generation by the target itself, token for token what batch 1 gives up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash.target import Target
from dflash.target.cache import roomy_cache

COMPACT_BELOW = 0.75  # drop finished rows from the batch once this share is still alive


@torch.inference_mode()
def generate_batch(
    target: Target,
    prompts: Sequence[np.ndarray],
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[np.ndarray]:
    """Continue each prompt until a stop token or ``max_new_tokens``.

    Args:
        prompts: token ids, ``[P_i]`` each; padded on the left here.
        temperature: 0 is greedy; otherwise sampled with a generator seeded by ``seed``.

    Returns:
        Answers ``[A_i]`` int32, stop token included.
    """
    batch = _Batch(target, prompts)
    generator = torch.Generator(device=target.device).manual_seed(seed)
    answers: list[list[int]] = [[] for _ in prompts]
    for _ in range(max_new_tokens):
        tokens = _pick(batch.logits, temperature, generator)  # [rows]
        for row, token in zip(batch.alive, tokens.tolist(), strict=True):
            answers[row].append(token)
        if not batch.advance(tokens):
            break
    return [_cut(ids, target.stop_token_ids) for ids in answers]


class _Batch:
    """The rows still being written, their cache and next logits."""

    def __init__(self, target: Target, prompts: Sequence[np.ndarray]) -> None:
        longest = max(len(ids) for ids in prompts)
        self.target = target
        self.stops = torch.tensor(target.stop_token_ids, device=target.device)
        self.alive = list(range(len(prompts)))
        self.done = torch.zeros(len(prompts), dtype=torch.bool, device=target.device)
        padding = next(iter(target.stop_token_ids), 0)  # masked; any id would do
        ids = torch.full((len(prompts), longest), padding)  # [R, P]
        self.mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.as_tensor(prompt)
            self.mask[row, longest - len(prompt) :] = 1
        self.mask = self.mask.to(target.device)
        self.cache = roomy_cache()
        self.positions = (self.mask.cumsum(-1) - 1).clamp(min=0)  # [R, P]
        self._forward(ids.to(target.device))

    def advance(self, tokens: Tensor) -> bool:
        """Feed one token per row; False when every row is finished."""
        self.done |= torch.isin(tokens, self.stops)
        if self.done.all():
            return False
        if (~self.done).float().mean() < COMPACT_BELOW:
            tokens = self._compact(tokens)
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.alive), 1)], dim=1)
        self.positions = self.positions[:, -1:] + 1
        self._forward(tokens[:, None])
        return True

    def _compact(self, tokens: Tensor) -> Tensor:
        keep = (~self.done).nonzero()[:, 0]
        self.alive = [self.alive[row] for row in keep.tolist()]
        self.cache.batch_select_indices(keep)
        self.mask, self.positions = self.mask[keep], self.positions[keep]
        self.done = self.done[keep]
        return tokens[keep]

    def _forward(self, ids: Tensor) -> None:
        out = self.target.model(
            ids,
            attention_mask=self.mask,
            position_ids=self.positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = out.logits[:, -1]  # [rows, V]


def _pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def _cut(ids: list[int], stop_token_ids: Sequence[int]) -> np.ndarray:
    """Rows that finished early kept receiving tokens; drop what follows the first stop token."""
    for index, token in enumerate(ids):
        if token in stop_token_ids:
            return np.asarray(ids[: index + 1], dtype=np.int32)
    return np.asarray(ids, dtype=np.int32)
