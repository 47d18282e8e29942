"""Slot losses and position weights (paper section 4.3 and A.1), as pure functions.

The loss of a global batch is ``sum(weight * cross_entropy) / sum(weight)``: numerator and
denominator are sums, so micro-batches and processes add up to the same value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ROWS = 1024  # slots whose logits exist at once
IGNORED = -100


def exponential(block_size: int, gamma: float) -> Tensor:
    """``[block_size]``: slot k weighs exp(-(k-1)/gamma); slot 0, the anchor, weighs nothing."""
    slots = torch.arange(block_size)
    return torch.where(slots > 0, torch.exp(-(slots - 1) / gamma), 0.0)


def equal(block_size: int, gamma: float) -> Tensor:
    """``[block_size]``: all slots but the anchor weigh one."""
    return (torch.arange(block_size) > 0).float()


POSITION_WEIGHTS: dict[str, Callable[[int, float], Tensor]] = {"exp": exponential, "none": equal}


class FrozenHeadCrossEntropy(torch.autograd.Function):
    """Weighted sum of cross entropies under a frozen head.

    The gradient with respect to the hidden states is formed chunk by chunk in the forward pass, so
    neither the logits of all slots nor a gradient of the head ever exist.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
    ) -> Tensor:
        """Sum of ``weights * cross_entropy``.

        Args:
            hidden: ``[S, H]`` of supervised slots.
            head: ``[V, H]`` frozen rows; ``bias`` ``[V]`` or None.
            labels: ``[S]`` rows of ``head``.
            weights: ``[S]`` float32.
        """
        gradient = torch.empty_like(hidden)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(hidden), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            scores = F.linear(hidden[part].to(head.dtype), head, bias).float()  # [s, V]
            log_z = scores.logsumexp(-1)
            chosen = scores.gather(-1, labels[part, None])[:, 0]
            total += ((log_z - chosen) * weights[part]).sum()
            probabilities = scores.sub_(log_z[:, None]).exp_()
            probabilities[torch.arange(len(log_z)), labels[part]] -= 1
            probabilities *= weights[part, None]
            gradient[part] = (probabilities.to(head.dtype) @ head).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None, None]:
        """Scale the gradient formed in the forward pass."""
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None


def label_weights(labels: Tensor, position_weights: Tensor) -> Tensor:
    """Weight of every slot, ``[..., block_size]``: its position's, or 0 where unsupervised."""
    return torch.where(labels == IGNORED, 0.0, position_weights.to(labels.device))


def block_loss(
    hidden: Tensor, head: Tensor, bias: Tensor | None, labels: Tensor, weights: Tensor
) -> Tensor:
    """Numerator of the loss: weighted cross entropy summed over supervised slots.

    Args:
        hidden: ``[B, N, block_size, H]`` drafter output.
        head: ``[V, H]`` and ``bias`` ``[V]`` or None: the frozen head's rows.
        labels: ``[B, N, block_size]`` rows of ``head``, -100 where unsupervised.
        weights: like ``labels``, from :func:`label_weights`.
    """
    supervised = weights > 0
    arguments = (hidden[supervised], head, bias, labels[supervised], weights[supervised])
    loss: Tensor = FrozenHeadCrossEntropy.apply(*arguments)
    return loss
