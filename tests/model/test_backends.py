"""One attention, four implementations: values and gradients, padding included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.integrations.flex_attention import flex_attention_forward

from dflash.model import DFlashDraftModel, DrafterSwitches, TrainingLayout, UserError
from dflash.model.blocks import two_part_attention
from dflash.model.blocks_cpu import merged_attention
from tests.model.toys import (
    AXES,
    Batch,
    every_combination,
    pairwise_combinations,
    toy_drafter,
    toy_switches,
    training_forward,
)

SEEING = ("attention.context", "attention.block", "kv.source")


def values_and_gradients(
    draft: DFlashDraftModel, batch: Batch, implementation: str
) -> dict[str, Tensor]:
    """Hidden states, and the gradients of a random projection of them."""
    draft.zero_grad()
    features = draft.context_of(batch.token_ids, batch.features, batch.embedding)
    features = features.clone().requires_grad_()
    noise = draft.embed_block(batch.anchor_ids(), batch.embedding).detach().requires_grad_()
    hidden = training_forward(draft, batch, implementation, features, noise)
    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))
    (hidden * direction).sum().backward()
    found = {"hidden": hidden.detach(), "d noise": noise.grad, "d features": features.grad}
    found |= {f"d {name}": parameter.grad for name, parameter in draft.named_parameters()}
    return {name: value for name, value in found.items() if value is not None}


def assert_same_everywhere(switches: DrafterSwitches) -> None:
    draft, batch = toy_drafter(switches), Batch.random(switches.block_size)
    expected = values_and_gradients(draft, batch, "eager")
    assert all(bool(value.isfinite().all()) for value in expected.values())
    for implementation in ("sdpa", "blocks"):
        found = values_and_gradients(draft, batch, implementation)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            close = torch.allclose(value, expected[name], atol=2e-5, rtol=1e-4)
            assert close, (implementation, name, switches)


@pytest.mark.parametrize(
    "switches", every_combination({name: AXES[name] for name in SEEING}), ids=str
)
def test_backends_agree_for_every_way_of_seeing(switches: DrafterSwitches) -> None:
    assert_same_everywhere(switches)


def test_backends_agree_pairwise() -> None:
    for switches in pairwise_combinations(AXES):
        assert_same_everywhere(switches)


@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("slots", [2, 5, 16])
def test_blocks_on_cpu_equals_its_written_out_form(heads: tuple[int, int], slots: int) -> None:
    base = Batch.random().layout
    layout = TrainingLayout(11, base.anchors, base.valid, base.lengths, slots)
    mask = layout.mask(DrafterSwitches(block_size=slots), "blocks")
    query = torch.randn(3, heads[0], 4 * slots, 8, requires_grad=True)
    key, value = (torch.randn(3, heads[1], 11 + 4 * slots, 8).requires_grad_() for _ in range(2))
    weight = torch.randn_like(query)
    results = []
    for attend in (two_part_attention, merged_attention):
        out = attend(query, key, value, mask, 0.3)
        results.append((out, *torch.autograd.grad((out * weight).sum(), (query, key, value))))
    for written_out, merged in zip(*results, strict=True):
        torch.testing.assert_close(merged, written_out, atol=1e-5, rtol=1e-4)


def test_blocks_gradients_by_finite_differences() -> None:
    """In float64, against numerical derivatives, so that no other implementation is trusted."""
    layout = TrainingLayout(
        context_length=3,
        anchors=torch.tensor([[2, 1]]),
        valid=torch.tensor([[True, True]]),
        lengths=torch.tensor([3]),
        block_size=2,
    )
    mask = layout.mask(toy_switches(block_size=2), "blocks")
    inputs = [torch.randn(1, h, n, 2, dtype=torch.float64) for h, n in ((2, 4), (1, 7), (1, 7))]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(
        lambda q, k, v: two_part_attention(q, k, v, mask, 0.7), inputs, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_blocks_under_autocast_follows_sdpa(dtype: torch.dtype) -> None:
    draft, batch = toy_drafter(toy_switches()), Batch.random()
    with torch.autocast("cpu", dtype=dtype):
        sdpa = values_and_gradients(draft, batch, "sdpa")
        blocks = values_and_gradients(draft, batch, "blocks")
    for name, value in blocks.items():
        error = (value.float() - sdpa[name].float()).norm() / sdpa[name].float().norm()
        assert error < 0.03, (name, error)


def test_blocks_refuses_attention_dropout() -> None:
    draft, batch = toy_drafter(toy_switches()), Batch.random()
    draft.train()
    for layer in draft.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(UserError, match=r"attention_dropout=0\.1.*blocks"):
        training_forward(draft, batch, "blocks")


@pytest.mark.parametrize(
    "dotted",
    [
        {},
        {"attention__context": "window:3", "attention__block": "causal"},
        {"kv__source": "target", "attention__context": "index_causal"},
    ],
)
def test_flex_attention_agrees(dotted: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled: the same function that torch.compile fuses, without a compiler."""
    from torch.nn.attention.flex_attention import flex_attention
    from transformers.integrations import flex_attention as integration

    monkeypatch.setattr(
        integration,
        "compile_friendly_flex_attention",
        lambda query, key, value, training=False, **kwargs: flex_attention(
            query, key, value, **kwargs
        ),
    )
    assert flex_attention_forward.__module__ == integration.__name__
    draft, batch = toy_drafter(toy_switches(**dotted)), Batch.random()
    with torch.no_grad():
        expected = training_forward(draft, batch, "sdpa")
        found = training_forward(draft, batch, "flex_attention")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["eager", "flex_attention", "blocks"])
def test_backends_agree_on_a_gpu(implementation: str) -> None:
    draft, batch = toy_drafter(toy_switches()).cuda(), Batch.random()
    layout = batch.layout
    batch = Batch(
        TrainingLayout(11, layout.anchors.cuda(), layout.valid.cuda(), layout.lengths.cuda(), 4),
        batch.token_ids.cuda(),
        batch.features.cuda(),
        batch.embedding.cuda(),
    )
    expected = values_and_gradients(draft, batch, "sdpa")
    for name, value in values_and_gradients(draft, batch, implementation).items():
        torch.testing.assert_close(value, expected[name], atol=1e-3, rtol=1e-2)
