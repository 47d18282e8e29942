"""At temperature > 0 the output is distributed as the target's own samples."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from dflash.decoding import dflash_generate
from dflash.decoding.verify import MatchVerifier
from tests.decoding.toys import toy_drafter, toy_prompt, toy_target

VOCAB, TEMPERATURE, DEPTH = 5, 1.5, 3


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square of the counts against exact probabilities; rare outcomes are pooled."""
    total = sum(counts.values())
    assert set(counts) <= set(expected)
    common = [key for key, p in expected.items() if p * total >= 5]
    observed = [counts[key] for key in common]
    wanted = [expected[key] * total for key in common]
    if len(common) < len(expected):
        observed.append(total - sum(observed))
        wanted.append(total - sum(wanted))
    return float(stats.chisquare(observed, wanted).pvalue)


@torch.inference_mode()
def exact(target, prompt) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of ``DEPTH`` tokens."""
    paths = torch.tensor(list(itertools.product(range(VOCAB), repeat=DEPTH)))
    logits = target(torch.cat([prompt.expand(len(paths), -1), paths], dim=1)).logits
    logs = torch.log_softmax(logits[:, prompt.shape[1] - 1 : -1].double() / TEMPERATURE, dim=-1)
    joint = logs.gather(-1, paths[..., None]).sum((1, 2)).exp()
    return dict(zip(map(tuple, paths.tolist()), joint.tolist(), strict=True))


@pytest.mark.parametrize("block_size", [None, 1])
def test_output_distribution_is_the_targets(block_size):
    target = toy_target(layers=2, vocab=VOCAB, seed=1)
    drafter = toy_drafter(
        target, mask_token_id=4, num_layers=1, block_size=3, features={"taps": [0]}
    )
    prompt, generator = toy_prompt(3) % VOCAB, torch.Generator().manual_seed(7)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for _ in range(400 if block_size is None else 200):
        result = dflash_generate(
            drafter,
            target,
            prompt,
            DEPTH,
            temperature=TEMPERATURE,
            block_size=block_size,
            return_stats=True,
            generator=generator,
        )
        counts[tuple(result.output_ids[0, 3:].tolist())] += 1
        accepted += result.acceptance().accepted
    assert p_value(counts, exact(target, prompt)) > 1e-3
    assert (accepted > 50) == (block_size is None)  # proposals did stand


@pytest.mark.parametrize("proposal", [[0, 0], [2, 1], [4, 4]])
def test_the_rule_alone_at_scale(proposal):
    """Fixed logits that do not depend on the path: tokens are independent draws of the target."""
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(5))
    verifier = MatchVerifier(TEMPERATURE, torch.Generator().manual_seed(11))
    first: Counter[tuple[int, ...]] = Counter()
    second: Counter[tuple[int, ...]] = Counter()
    for _ in range(4000):
        verdict = verifier(proposal, logits)
        tokens = [*proposal[: verdict.accepted], verdict.token]
        first[(tokens[0],)] += 1
        if len(tokens) > 1:
            second[(tokens[1],)] += 1
    probabilities = torch.softmax(logits / TEMPERATURE, -1).double()
    for counts, row in ((first, probabilities[0]), (second, probabilities[1])):
        assert p_value(counts, {(v,): float(p) for v, p in enumerate(row / row.sum())}) > 1e-3


def test_a_seed_fixes_the_output():
    target = toy_target()
    drafter, prompt = toy_drafter(target), toy_prompt(5)

    def sample(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        output = dflash_generate(drafter, target, prompt, 20, temperature=1.0, generator=generator)
        return output[0].tolist()

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(4)}) > 1


def test_the_chi_square_can_fail():
    counts = Counter({(0,): 600, (1,): 400})
    assert p_value(counts, {(0,): 0.5, (1,): 0.5}) < 1e-3
    assert np.isclose(p_value(Counter({(0,): 500, (1,): 500}), {(0,): 0.5, (1,): 0.5}), 1.0)
