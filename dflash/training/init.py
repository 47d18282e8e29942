"""Starting values. Arms of an experiment share them parameter by parameter (design §8).

Every parameter is drawn by its own generator, keyed on the seed and the parameter's *name*, so a
module that one arm lacks shifts nothing in the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dflash.data.rollouts import Rollout
from dflash.model import DFlashDraftModel, UserError
from dflash.target import Target
from dflash.target.taps import decoder_of
from dflash.training.nearsight import nearsighted

PROBED = 8  # rollouts whose mean inputs shape the first attention
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


def init_from_target(
    drafter: DFlashDraftModel, target: Target, seed: int, rollouts: Sequence[Rollout]
) -> None:
    """Start from the target: its last layers, its final norm, its own values.

    Draft layer i copies the i-th of the target's last layers, as far as both have the parameter.
    The fusion starts as the plain selection of the tap nearest below the first copied layer, normed
    like that layer's input, so the keys and values of the context start as the target's own. A
    q/k norm that the target lacks starts at the size the target's queries and keys have, computed
    from its weights. The first layer's attention starts near-sighted, see
    :mod:`dflash.training.nearsight`. Everything else keeps its named values.

    Args:
        rollouts: a few of them show what features and anchors look like on average.

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
        nearsighted(drafter.layers[0], *_mean_inputs(drafter, target, first, rollouts))


def _mean_inputs(
    drafter: DFlashDraftModel, target: Target, first: int, rollouts: Sequence[Rollout]
) -> tuple[Tensor, Tensor, Tensor]:
    """What the first draft layer's attention is fed: a mask slot, the mean anchor and feature.

    They depend on the target and the depth alone, so that arms share the values made of them.
    """
    norm: Any = target.layers[first].input_layernorm
    probe = rollouts[:PROBED]
    answers = torch.as_tensor(np.concatenate([row.answer_ids for row in probe])).long()
    embedded = target.embedding(answers.to(target.device))
    anchors = norm(embedded).mean(0)
    if drafter.mask_embed is not None:  # a learned mask starts as the mean token
        drafter.mask_embed.copy_(embedded.mean(0))
    mask = target.config.mask_token_id
    slot = anchors if mask is None else norm(target.embedding.weight[mask])
    tokens = [torch.as_tensor(row.token_ids).long()[None] for row in probe]
    below = [target.features(ids, [max(first - 1, 0)])[0] for ids in tokens]
    feature = norm(torch.cat(below)).mean(0)
    return slot.float().cpu(), anchors.float().cpu(), feature.float().cpu()


def _copy_layer(layer: nn.Module, source: nn.Module) -> None:
    theirs = dict(source.named_parameters())
    for name, parameter in layer.named_parameters():
        if name.startswith("mlp.") and parameter.shape != theirs[name].shape:
            _copy_common(parameter, theirs[name])  # drafter.mlp_size
        elif name in theirs:
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


def _copy_common(parameter: Tensor, source: Tensor) -> None:
    """The first neurons of both; further ones keep their named values."""
    common = tuple(slice(min(sizes)) for sizes in zip(parameter.shape, source.shape, strict=True))
    parameter[common] = source[common].to(parameter)


Initialiser = Callable[[DFlashDraftModel, Target, int, Sequence[Rollout]], None]
INITIALISERS: dict[str, Initialiser] = {
    "random": lambda drafter, target, seed, rollouts: init_by_name(drafter, seed),
    "target": init_from_target,
}
