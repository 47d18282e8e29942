"""The answers in the repository are what the default target says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash.data.config import DataConfig
from dflash.data.prompts import load_prompts
from dflash.data.shipped import prompt_key, shipped_answers
from dflash.target import Target

pytestmark = pytest.mark.real_model
TIE = 1e-3  # processors round differently, and break ties otherwise
PER_SET = 3


def prompt_ids(target: Target, name: str, limit: int | None) -> list[np.ndarray]:
    """First turns of a prompt set, as the target is asked."""
    asked = [[{"role": "user", "content": p.turns[0]}] for p in load_prompts(name, limit)]
    return [np.asarray(target.encode_chat(messages), dtype=np.int32) for messages in asked]


@torch.inference_mode()
def gaps(target: Target, prompt: np.ndarray, answer: np.ndarray) -> torch.Tensor:
    """By how much the best logit exceeds the stored token's, ``[A]``."""
    ids = torch.as_tensor(np.concatenate([prompt, answer])).long()[None]
    logits = target.model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]  # [A, V]
    return logits.max(-1).values - logits.gather(-1, ids[0, len(prompt) :, None])[:, 0]


@pytest.mark.parametrize("name", [name for name, count in DataConfig().train.items() if count])
def test_stored_answers_are_the_targets_own(smollm2, name):
    stored = shipped_answers(smollm2, DataConfig().train_new_tokens)
    asked = prompt_ids(smollm2, name, 10)
    known = [(ids, stored[key]) for ids in asked if (key := prompt_key(ids)) in stored]
    assert len(known) >= PER_SET
    for prompt, answer in sorted(known, key=lambda pair: len(pair[0]))[:PER_SET]:
        assert gaps(smollm2, prompt, answer).max() <= TIE
        wrong = np.where(np.arange(len(answer)) == len(answer) // 2, 77, answer)
        assert gaps(smollm2, prompt, wrong).max() > TIE  # the check itself can fail
