"""The cached loop equals one that computes everything anew at every step."""

from __future__ import annotations

import pytest
import torch

from dflash.decoding import dflash_generate
from tests.decoding.toys import features_of, greedy, toy_drafter, toy_prompt, toy_target

SWITCHES = {
    "paper": {},
    "causal": {"attention": {"block": "causal"}},
    "window": {"attention": {"context": "window:3"}},
    "index_causal": {"attention": {"context": "index_causal"}},
    "input": {"kv": {"fusion": "input"}},
    "draft_only": {"kv": {"source": "draft"}},
    "target_only": {"kv": {"source": "target"}},
    "no_target": {"kv": {"fusion": "none"}},
    "separate": {"kv": {"projection": "separate"}},
}


@torch.inference_mode()
def decode_anew(drafter, target, prompt, count: int) -> tuple[list[int], list[int]]:
    """Output tokens and accepted counts; no cache, the whole prefix through the drafter."""
    start = prompt.shape[1]
    tokens = prompt[0].tolist() + greedy(target, prompt, count + drafter.block_size)
    features = features_of(target, drafter, tokens)  # a causal target: row i knows tokens <= i
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()
    accepted, anchor = [], start
    while anchor - start < count - 1:
        committed = torch.tensor([tokens[:anchor]])
        hidden = drafter(
            position_ids=torch.arange(anchor + drafter.block_size)[None],
            noise_embedding=drafter.embed_block(torch.tensor([tokens[anchor]]), embedding),
            target_hidden=drafter.context_of(committed, features[None, :anchor], embedding),
        )
        drafted = drafter.to_token_ids(drafter.draft_logits(hidden[0, 1:], head).argmax(-1))
        run = 0
        while run < len(drafted) and drafted[run] == tokens[anchor + 1 + run]:
            run += 1
        accepted.append(run)
        anchor += run + 1
    return tokens[: start + count], accepted


@pytest.mark.parametrize("name", SWITCHES)
def test_every_prefix_length(name):
    target = toy_target("qwen3", tied=False, seed=3, layers=3)
    drafter = toy_drafter(target, seed=1, **SWITCHES[name])
    for length in range(1, 9):
        prompt = toy_prompt(length, seed=length)
        result = dflash_generate(drafter, target, prompt, 8, return_stats=True)
        tokens, accepted = decode_anew(drafter, target, prompt, 8)
        assert result.output_ids[0].tolist() == tokens
        assert [step.accepted for step in result.steps] == accepted
