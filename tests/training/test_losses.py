from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dflash.training import losses
from dflash.training.config import LossConfig
from dflash.training.losses import POSITION_WEIGHTS, block_loss, label_weights

HIDDEN, VOCAB, SLOTS = 6, 9, 4


def test_golden_weights_of_the_paper():
    weights = POSITION_WEIGHTS["exp"](16, LossConfig().gamma_for(16))
    golden = [0, 1, 0.867, 0.751, 0.651, 0.565, 0.490, 0.424, 0.368, 0.319, 0.276, 0.240]
    golden += [0.208, 0.180, 0.156, 0.135]
    assert weights.shape == (16,)
    torch.testing.assert_close(weights, torch.tensor(golden), atol=6e-4, rtol=0)
    for block_size, share in ((16, 0.49), (10, 0.66), (8, 0.77)):  # of the first four slots
        weights = POSITION_WEIGHTS["exp"](block_size, LossConfig().gamma_for(block_size))
        assert float(weights[1:5].sum() / weights.sum()) == pytest.approx(share, abs=0.006)


def test_equal_weights():
    assert POSITION_WEIGHTS["none"](5, 7.0).tolist() == [0, 1, 1, 1, 1]


def test_label_weights_drop_what_is_unsupervised():
    labels = torch.tensor([[-100, 3, -100, 0], [-100, -100, -100, -100]])
    weights = label_weights(labels, torch.tensor([0.0, 1.0, 0.5, 0.25]))
    assert weights.tolist() == [[0, 1, 0, 0.25], [0, 0, 0, 0]]


def example(
    blocks: int = 3, bias: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """Random states of two rows, a head, labels with gaps, and weights."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, blocks, SLOTS, HIDDEN, generator=g)
    head = torch.randn(VOCAB, HIDDEN, generator=g)
    offset = torch.randn(VOCAB, generator=g) if bias else None
    labels = torch.randint(0, VOCAB, (2, blocks, SLOTS), generator=g)
    labels[torch.rand(labels.shape, generator=g) < 0.3] = -100
    labels[..., 0] = -100
    weights = label_weights(labels, POSITION_WEIGHTS["exp"](SLOTS, 1.5))
    return hidden, head, offset, labels, weights


def slow_loss(
    hidden: Tensor, head: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    """Slot by slot, in double precision."""
    total = torch.zeros((), dtype=torch.double)
    for row in range(hidden.shape[0]):
        for block in range(hidden.shape[1]):
            for slot in range(hidden.shape[2]):
                if labels[row, block, slot] == -100:
                    continue
                scores = head.double() @ hidden[row, block, slot].double()
                scores = scores if bias is None else scores + bias.double()
                log_p = scores - scores.exp().sum().log()
                total = total - weights[row, block, slot] * log_p[labels[row, block, slot]]
    return total


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1024])
def test_equals_a_slot_by_slot_loss_and_its_gradient(bias, chunk, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_ROWS", chunk)
    hidden, head, offset, labels, weights = example(bias=bias)
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    loss = block_loss(ours, head, offset, labels, weights)
    expected = slow_loss(theirs, head, offset, labels, weights)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    (loss * 0.7).backward()
    (expected * 0.7).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert not ours.grad[labels == -100].any()


@pytest.mark.parametrize("supervised", range(7))
def test_every_number_of_slots_around_the_chunk_boundaries(supervised, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_ROWS", 3)
    hidden, head, _, labels, _ = example()
    labels = torch.where(torch.arange(labels.numel()).view(labels.shape) < supervised, 1, -100)
    weights = label_weights(labels, torch.ones(SLOTS))
    loss = block_loss(hidden.requires_grad_(), head, None, labels, weights)
    picked = hidden[labels == 1]
    expected = F.cross_entropy(picked @ head.T, labels[labels == 1], reduction="sum")
    torch.testing.assert_close(loss, expected if supervised else torch.zeros(()))


def test_nothing_supervised_is_a_zero_with_a_zero_gradient():
    hidden, head, _, labels, _ = example()
    none = torch.full_like(labels, -100)
    hidden.requires_grad_()
    loss = block_loss(hidden, head, None, none, label_weights(none, torch.ones(SLOTS)))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))


def test_frozen_value_of_an_undecided_drafter():
    _, head, _, labels, weights = example()
    loss = block_loss(torch.zeros(2, 3, SLOTS, HIDDEN), head, None, labels, weights)
    assert loss.item() == pytest.approx(weights.sum().item() * math.log(VOCAB), rel=1e-6)


def test_frozen_value_of_one_block():
    """Slots 1 to 3 give their label the odds 1, e and e^2 to one; weights 1, 1/e and 1/e^2."""
    head = torch.tensor([[1.0], [0.0]])
    hidden = torch.tensor([5.0, 0.0, 1.0, 2.0]).view(1, 1, 4, 1)
    labels = torch.tensor([[[-100, 0, 0, 0]]])
    weights = label_weights(labels, POSITION_WEIGHTS["exp"](4, 1.0))
    odds = [math.log1p(math.exp(-x)) for x in (0, 1, 2)]  # 0.6931, 0.3133, 0.1269
    expected = odds[0] + odds[1] / math.e + odds[2] / math.e**2
    assert expected == pytest.approx(0.825568, abs=1e-6)
    assert block_loss(hidden, head, None, labels, weights).item() == pytest.approx(expected)


def test_the_head_gets_no_gradient():
    hidden, head, offset, labels, weights = example(bias=True)
    assert offset is not None
    head.requires_grad_()
    offset.requires_grad_()
    block_loss(hidden.requires_grad_(), head, offset, labels, weights).backward()
    assert head.grad is None
    assert offset.grad is None
    assert hidden.grad is not None


def test_the_target_may_be_bf16_while_the_drafter_is_fp32():
    hidden, head, _, labels, weights = example()
    ours, exact = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    block_loss(ours, head.bfloat16(), None, labels, weights).backward()
    loss = block_loss(exact, head, None, labels, weights)
    loss.backward()
    assert ours.grad.dtype == torch.float32
    torch.testing.assert_close(ours.grad, exact.grad, rtol=0.05, atol=0.05)


def test_under_autocast_the_sum_stays_fp32():
    hidden, head, _, labels, weights = example()
    exact = block_loss(hidden, head, None, labels, weights)
    with torch.autocast("cpu", torch.bfloat16):
        loss = block_loss(hidden, head, None, labels, weights)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0.02)
