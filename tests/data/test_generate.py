from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dflash.data import generate
from dflash.data.generate import generate_batch
from dflash.target.oracle import OracleTarget
from tests.data.toys import small_target
from tests.decoding.toys import greedy

NEW = 16


def prompts(count: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [
        generator.integers(0, 9, generator.integers(1, 15)).astype(np.int32) for _ in range(count)
    ]


def one_by_one(target, prompt: np.ndarray) -> list[int]:
    """The whole prefix anew for every token, cut after the first stop token."""
    answer = greedy(target.model, torch.as_tensor(prompt).long()[None], NEW)
    stops = [index for index, token in enumerate(answer) if token in target.stop_token_ids]
    return answer[: stops[0] + 1] if stops else answer


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen3", False)])
def test_a_batch_gives_what_batch_one_gives(family, tied, monkeypatch):
    target = small_target(family=family, tied=tied, seed=4, stop=(9, 3))
    compacted = []
    compact = generate._Batch._compact
    monkeypatch.setattr(generate._Batch, "_compact", lambda *a: compacted.append(1) or compact(*a))
    asked = prompts(10)
    answers = generate_batch(target, asked, NEW)
    expected = [one_by_one(target, prompt) for prompt in asked]
    assert [answer.tolist() for answer in answers] == expected
    assert all(answer.dtype == np.int32 for answer in answers)
    # the case is worth something: rows stop at different times and leave the batch
    assert len({len(answer) for answer in answers}) > 2
    assert any(len(answer) == NEW for answer in answers)
    assert compacted


def test_without_compaction_the_same(monkeypatch):
    target = small_target(seed=4, stop=(9, 3))
    compacting = generate_batch(target, prompts(10), NEW)
    monkeypatch.setattr(generate, "COMPACT_BELOW", 0.0)
    plain = generate_batch(target, prompts(10), NEW)
    assert [a.tolist() for a in compacting] == [a.tolist() for a in plain]


def test_the_oracle_answers_as_designed():
    target = OracleTarget()
    design = target.design
    asked = [np.array(design.prompt(key, key + 2), dtype=np.int32) for key in range(design.keys)]
    asked.append(np.concatenate([asked[1], design.answer(1, 3, 5)]).astype(np.int32))
    answers = generate_batch(target, asked, 10)
    for key in range(design.keys):
        assert answers[key].tolist() == design.answer(key, key + 2, 10)
    assert answers[-1].tolist() == design.answer(1, 3, 15)[5:]


def test_sampling_is_reproducible_and_seeded():
    target = small_target(seed=4, stop=(9, 3))
    first, again, other = (
        [a.tolist() for a in generate_batch(target, prompts(6), NEW, 1.0, seed)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_sampled_tokens_follow_the_tempered_distribution(temperature):
    target = small_target(seed=4, stop=(9, 3))
    prompt = np.array([1, 4, 2], dtype=np.int32)
    rows = 2000
    answers = generate_batch(target, [prompt] * rows, 1, temperature, seed=5)
    logits = target.model(torch.as_tensor(prompt).long()[None]).logits[0, -1].double()
    expected = torch.softmax(logits / temperature, -1).detach().numpy() * rows
    counts = np.bincount([int(a[0]) for a in answers], minlength=len(expected))
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    keep = wanted > 0
    assert stats.chisquare(observed[keep], wanted[keep]).pvalue > 1e-3


def test_stops_at_the_stop_token_at_once():
    target = small_target(stop=tuple(range(12)))
    answers = generate_batch(target, prompts(3), NEW)
    assert [len(answer) for answer in answers] == [1, 1, 1]
