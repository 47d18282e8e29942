"""Optimizer and learning-rate schedule of the paper (section 5, A.1)."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from dflash.training.config import TrainConfig


def build_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW over the trainable parameters of ``model``, which must not hold the target's."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return AdamW(
        parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def learning_rate_factor(step: int, steps: int, warmup_ratio: float, floor: float) -> float:
    """Linear warm-up, then a cosine from 1 to ``floor`` at the last step."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def build_schedule(optimizer: AdamW, steps: int, config: TrainConfig) -> LambdaLR:
    """Warm-up and cosine, stepped once per optimizer step."""

    def factor(step: int) -> float:
        return learning_rate_factor(step, steps, config.warmup_ratio, config.min_lr_ratio)

    return LambdaLR(optimizer, factor)
