"""Starting values. Arms of an experiment share them parameter by parameter (design §8).

Every parameter is drawn by its own generator, keyed on the seed and the parameter's *name*, so a
module that one arm lacks shifts nothing in the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dflash.model import DFlashDraftModel, UserError
from dflash.target import Target
from dflash.target.taps import decoder_of

FUSION_NOISE = 0.1  # share of the named values that stays in fc beside the selected tap


def init_by_name(drafter: DFlashDraftModel, seed: int) -> None:
    """Norm weights one, biases zero, everything else normal with the config's spread."""
    spread = drafter.config.initializer_range
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.copy_(named_normal(name, parameter.shape, seed) * spread)


def named_normal(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Standard normal values that depend on the seed and the name alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randn(shape, generator=generator)


def init_from_target(drafter: DFlashDraftModel, target: Target, seed: int) -> None:
    """Start from the target: its last layers, its final norm, its own keys and values.

    Draft layer i copies the i-th of the target's last layers, as far as both have the parameter.
    The fusion starts as the plain selection of the tap nearest below the first copied layer, normed
    like that layer's input, so the keys and values of the context start as the target's own. A
    q/k norm that the target lacks starts at the size the target's queries and keys have, computed
    from its weights. Everything else keeps its named values.

    Raises:
        UserError: the drafter has more layers than the target, or layers of other sizes or names.
    """
    init_by_name(drafter, seed)
    first = target.num_layers - len(drafter.layers)
    if first < 0:
        allowed = f"at most {target.num_layers}, the target's, with train.init=target"
        raise UserError.of("drafter.num_layers", len(drafter.layers), allowed)
    if not hasattr(target.layers[first], "input_layernorm"):
        raise UserError.of("train.init", "target", "random: the target's layers are unlike Llama's")
    decoder: Any = decoder_of(target.model)
    with torch.no_grad():
        for index, layer in enumerate(drafter.layers):
            _copy_layer(layer, target.layers[first + index])
        _copy(drafter.norm.weight, decoder.norm.weight, "norm")
        _select_tap(drafter, target.layers[first], first)


def _copy_layer(layer: nn.Module, source: nn.Module) -> None:
    theirs = dict(source.named_parameters())
    for name, parameter in layer.named_parameters():
        if name in theirs:
            _copy(parameter, theirs[name], name)
        elif (shared := name.replace("_context", "")) in theirs:  # kv.projection=separate
            _copy(parameter, theirs[shared], name)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            projection = theirs[name.replace("_norm.weight", "_proj.weight")]
            parameter.fill_(_typical_size(projection, theirs["input_layernorm.weight"]))


def _typical_size(projection: Tensor, norm: Tensor) -> float:
    """Root mean square of ``projection @ x`` for an ``x`` of independent normed channels."""
    return float((projection.float() * norm.float()).pow(2).sum(1).mean().sqrt())


def _select_tap(drafter: DFlashDraftModel, source: Any, first: int) -> None:
    """``fc`` picks one tap; ``hidden_norm`` norms it like the input of target layer ``first``."""
    if drafter.fc is not None:
        size = drafter.config.hidden_size
        below = [index for index, tap in enumerate(drafter.target_layer_ids) if tap < first]
        chosen = below[-1] if below else 0
        drafter.fc.weight.mul_(FUSION_NOISE)
        drafter.fc.weight[:, chosen * size : (chosen + 1) * size] += torch.eye(size)
    if isinstance(weight := getattr(drafter.hidden_norm, "weight", None), Tensor):
        _copy(weight, source.input_layernorm.weight, "hidden_norm")


def _copy(parameter: Tensor, source: Tensor, name: str) -> None:
    if parameter.shape != source.shape:
        shapes = f"{list(source.shape)} like the target's {name}, or train.init=random"
        raise UserError.of(f"shape of {name}", list(parameter.shape), shapes)
    parameter.copy_(source)


INITIALISERS: dict[str, Callable[[DFlashDraftModel, Target, int], None]] = {
    "random": lambda drafter, target, seed: init_by_name(drafter, seed),
    "target": init_from_target,
}
