"""What a block must not see leaves its hidden states bit-identical, its gradient exactly zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dflash.model import DrafterSwitches
from tests.model.toys import (
    AXES,
    Batch,
    every_combination,
    toy_drafter,
    toy_switches,
    training_forward,
)

IMPLEMENTATIONS = ("sdpa", "eager", "blocks")
WAYS = every_combination(
    {name: AXES[name] for name in ("attention.context", "kv.source", "kv.fusion")}
)
# A block at position 0 of a drafter without block keys has nothing to see and attends to feature 0.
BATCH = Batch.random(first_anchor=1)


def inputs(switches: DrafterSwitches) -> tuple[Tensor, Tensor]:
    draft = toy_drafter(switches)
    features = draft.context_of(BATCH.token_ids, BATCH.features, BATCH.embedding)
    noise = draft.embed_block(BATCH.anchor_ids(), BATCH.embedding)
    return features.clone(), noise.clone()


def valid_blocks() -> list[tuple[int, int]]:
    return [(row, block) for row, block in BATCH.layout.valid.nonzero().tolist()]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("switches", WAYS, ids=str)
def test_forbidden_inputs_change_nothing(switches: DrafterSwitches, implementation: str) -> None:
    draft, layout = toy_drafter(switches), BATCH.layout
    features, noise = inputs(switches)
    with torch.no_grad():
        before = training_forward(draft, BATCH, implementation, features, noise)
        for row, block in valid_blocks():
            anchor = int(layout.anchors[row, block])
            changed, other = features.clone(), noise.clone()
            changed[row, anchor:] = torch.randn_like(changed[row, anchor:])
            kept = other[row, block].clone()
            other[row] = torch.randn_like(other[row])
            other[row, block] = kept
            after = training_forward(draft, BATCH, implementation, changed, other)
            assert torch.equal(before[row, block], after[row, block]), (row, block)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("switches", WAYS, ids=str)
def test_forbidden_inputs_get_no_gradient(switches: DrafterSwitches, implementation: str) -> None:
    draft, layout = toy_drafter(switches), BATCH.layout
    features, noise = (tensor.requires_grad_() for tensor in inputs(switches))
    hidden = training_forward(draft, BATCH, implementation, features, noise)
    reads = switches.context_keys or switches.kv.fusion == "input"
    for row, block in valid_blocks():
        loss = hidden[row, block].sum()
        d_features, d_noise = torch.autograd.grad(
            loss, (features, noise), retain_graph=True, allow_unused=True
        )
        anchor = int(layout.anchors[row, block])
        elsewhere = torch.ones(noise.shape[:2], dtype=torch.bool)
        elsewhere[row, block] = False
        assert torch.count_nonzero(d_noise[elsewhere]) == 0
        assert torch.count_nonzero(d_noise[row, block]) > 0
        if not reads:
            assert d_features is None
            continue
        assert torch.count_nonzero(d_features[row, anchor:]) == 0
        surely_seen = 0 if switches.attention.context == "index_causal" else anchor - 1
        assert torch.count_nonzero(d_features[row, surely_seen]) > 0
        others = [index for index in range(len(features)) if index != row]
        assert torch.count_nonzero(d_features[others]) == 0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_changes_nothing(implementation: str) -> None:
    draft, layout = toy_drafter(toy_switches()), BATCH.layout
    features, noise = inputs(draft.switches)
    with torch.no_grad():
        before = training_forward(draft, BATCH, implementation, features, noise)
        for row, length in enumerate(layout.lengths.tolist()):
            features[row, length:] = 1e4
        noise[~layout.valid] = 1e4
        after = training_forward(draft, BATCH, implementation, features, noise)
    assert torch.equal(before[layout.valid], after[layout.valid])


@pytest.mark.parametrize("context", ["full", "window:2", "latest", "index_causal"])
def test_the_leaky_control_does_leak(context: str) -> None:
    """The negative control reads the features it says, and only those."""
    switches = toy_switches(attention__leak=2, attention__context=context)
    draft = toy_drafter(switches)
    features, noise = inputs(switches)
    hidden = training_forward(draft, BATCH, "sdpa", features.requires_grad_(), noise)
    row, block, anchor = 0, 1, 4
    gradient = torch.autograd.grad(hidden[row, block].sum(), features)[0][row]
    touched = gradient.abs().sum(dim=-1) > 0
    assert touched[anchor : anchor + 2].all()
    assert not touched[anchor + 2 :].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("source", ["target+draft", "draft", "target"])
@pytest.mark.parametrize("context", ["full", "window:2", "index_causal"])
def test_no_nan_without_a_single_valid_block(
    implementation: str, source: str, context: str
) -> None:
    switches = toy_switches(kv__source=source, attention__context=context)
    draft, batch = toy_drafter(switches), Batch.random()
    batch.layout.valid[:] = False
    batch.layout.lengths[1] = 0
    features, noise = (tensor.requires_grad_() for tensor in inputs(switches))
    hidden = training_forward(draft, batch, implementation, features, noise)
    hidden.square().sum().backward()
    gradients = [p.grad for p in draft.parameters() if p.grad is not None]
    assert len(gradients) > 10
    assert all(bool(tensor.isfinite().all()) for tensor in (hidden, noise.grad, *gradients))
