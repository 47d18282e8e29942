"""Which layers of the target are tapped, and how their outputs become one feature.

A tap is the 0-based id of a decoder layer and means that layer's *output*, which transformers
stores as ``hidden_states[id + 1]`` (index 0 is the embedding). Other projects number differently;
only this numbering is used here (design §6).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash.model.errors import UserError
from dflash.model.switches import argument_of

TAPS_PER_THIRD = 5  # early, middle and late tap as many layers as the paper's uniform placement
_FIELD = "drafter.features.taps"


def _evenly_spaced(first: int, last: int, count: int) -> list[int]:
    """``count`` integers from ``first`` to ``last``, rounded half to even as the reference does."""
    if count == 1:
        return [round((first + last) / 2)]
    return [round(first + i * (last - first) / (count - 1)) for i in range(count)]


def build_target_layer_ids(num_target_layers: int, num_taps: int) -> list[int]:
    """Spread taps from the second to the third-to-last layer (paper §4 and its reference code).

    Args:
        num_target_layers: decoder layers of the target.
        num_taps: how many layers to tap; a single tap sits in the middle.

    Raises:
        UserError: the target is too shallow for that many distinct layers.
    """
    if num_taps == 1:
        ids = [num_target_layers // 2]
    else:
        ids = _evenly_spaced(1, num_target_layers - 3, num_taps)
    return list(_checked(ids, f"uniform:{num_taps}", num_target_layers))


def most_taps(num_target_layers: int, wanted: int) -> int:
    """The largest number of uniform taps, at most ``wanted``, that are distinct layers."""
    for count in range(wanted, 1, -1):
        ids = _evenly_spaced(1, num_target_layers - 3, count)
        if ids[0] < ids[-1] and len(set(ids)) == count:
            return count
    return 1


def resolve_taps(taps: str | Sequence[int], num_target_layers: int) -> tuple[int, ...]:
    """Turn the switch ``features.taps`` into layer ids.

    ``early``, ``middle`` and ``late`` spread five taps over that third of the layers; ``last`` is
    the last decoder layer, before the final norm.

    Raises:
        UserError: an id is out of range or occurs twice.
    """
    if not isinstance(taps, str):
        return _checked(taps, list(taps), num_target_layers)
    if taps.startswith("uniform:"):
        return tuple(build_target_layer_ids(num_target_layers, argument_of(taps)))
    if taps == "last":
        return (num_target_layers - 1,)
    third = ("early", "middle", "late").index(taps)
    first = third * num_target_layers // 3
    last = (third + 1) * num_target_layers // 3 - 1
    return _checked(_evenly_spaced(first, last, TAPS_PER_THIRD), taps, num_target_layers)


def _checked(ids: Sequence[int], value: object, num_target_layers: int) -> tuple[int, ...]:
    if len(set(ids)) < len(ids):
        allowed = f"distinct layers of a target with {num_target_layers}; got {list(ids)}"
        raise UserError.of(_FIELD, value, allowed)
    if any(not 0 <= layer < num_target_layers for layer in ids):
        raise UserError.of(_FIELD, value, f"layers 0 to {num_target_layers - 1}; got {list(ids)}")
    return tuple(ids)


def extract_context_feature(hidden_states: Sequence[Tensor], layer_ids: Sequence[int]) -> Tensor:
    """Concatenate the tapped layers' outputs on channels.

    Args:
        hidden_states: a transformers model's ``hidden_states``: embedding output, then one
            ``[B, T, H]`` per layer. The last entry is usually after the final norm, so the tap
            ``last`` needs a hook on the layer itself.
        layer_ids: F 0-based decoder layers.

    Returns:
        ``[B, T, F*H]``
    """
    return torch.cat([hidden_states[layer + 1] for layer in layer_ids], dim=-1)
