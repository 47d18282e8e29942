from __future__ import annotations

import pytest
import torch
from torch import nn

from dflash.training.config import TrainConfig
from dflash.training.optim import build_optimizer, build_schedule, learning_rate_factor


def test_golden_schedule():
    factors = [learning_rate_factor(step, 12, 2 / 12, 0.1) for step in range(13)]
    assert factors[:3] == pytest.approx([0.5, 1.0, 1.0])  # warm-up of two steps, then the cosine
    assert factors[7] == pytest.approx(0.55)  # half way down
    assert factors[12] == pytest.approx(0.1)
    assert factors[2:] == sorted(factors[2:], reverse=True)


@pytest.mark.parametrize("steps", [1, 2, 3, 100])
@pytest.mark.parametrize("ratio", [0.0, 0.04, 0.5, 1.0])
def test_no_step_of_any_run_is_without_a_rate(steps, ratio):
    factors = [learning_rate_factor(step, steps, ratio, 0.0) for step in range(steps)]
    assert all(0 < factor <= 1 for factor in factors)


def test_schedule_and_optimizer_follow_the_config():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    config = TrainConfig(lr=0.5, betas=(0.8, 0.7), weight_decay=0.25, warmup_ratio=0.2)
    optimizer = build_optimizer(model, config)
    schedule = build_schedule(optimizer, 10, config)
    (group,) = optimizer.param_groups
    assert [p is model.weight for p in group["params"]] == [True]
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.7), 0.25)
    rates = []
    for _ in range(10):
        rates.append(group["lr"])
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        schedule.step()
    expected = [0.5 * learning_rate_factor(step, 10, 0.2, 0.0) for step in range(10)]
    assert rates == pytest.approx(expected)
