"""How far training moved each component of a drafter.

A component whose parameters kept their starting values was not trained, whatever the loss did, and
nothing can be said about it (design §6).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def starting_values(drafter: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter, in the memory of the host: it waits until training is over."""
    return {
        name: value.detach().to("cpu", copy=True)
        for name, value in drafter.named_parameters()
        if value.requires_grad
    }


def largest_moves(state: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, float]:
    """Component -> largest absolute change of any of its parameters since ``start``.

    Components are those of :func:`components_of`; one that a drafter lacks is absent.
    """
    moves: dict[str, float] = {}
    for name, before in start.items():
        now = state[name].detach().to("cpu", torch.float32)
        move = float((now - before.float()).abs().max())
        for component in components_of(name):
            moves[component] = max(moves.get(component, 0.0), move)
    return moves


def components_of(parameter: str) -> tuple[str, ...]:
    """The components that a parameter belongs to: its module's own name and, within, its layer's.

    ``layers.2.self_attn.q_norm.weight`` is of ``q_norm`` and ``layers.2``, ``layers.0.mlp.*`` of
    ``mlp`` and ``layers.0``, ``fc.weight`` of ``fc``.
    """
    parts = parameter.split(".")
    if parts[0] != "layers":
        return (parts[0],)
    own = parts[3] if parts[2] == "self_attn" else parts[2]
    return (own, f"layers.{parts[1]}")
