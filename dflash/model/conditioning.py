"""How target features enter the drafter: as keys and values, at its input, or not at all.

The parameters are the drafter's own modules ``fc`` and ``hidden_norm`` (public names); this file
builds them and holds the functions that use them.

* ``fused``: ``context = hidden_norm(fc(features))``, read as keys and values by every layer.
* ``input``: the same fusion, but the latest committed feature (position anchor-1) is added to every
  slot's input embedding; keys and values come from the block alone.
* ``none``: the context is the token embeddings of the committed tokens, through ``hidden_norm``.

A drafter that neither has context keys nor adds to its input has no such parameters.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config, Qwen3RMSNorm

from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches

# (input embeddings [B, N*slots, H], context [B, C, H], index of each block's latest feature [B, N])
Injection = Callable[[Tensor, Tensor, Tensor], Tensor]


def uses_context(switches: DrafterSwitches) -> bool:
    """Whether anything of the target (or of the committed tokens) reaches the drafter."""
    return switches.context_keys or switches.kv.fusion == "input"


def build_fc(config: Qwen3Config, switches: DrafterSwitches, num_taps: int) -> nn.Linear | None:
    """The fusion layer ``[F*H] -> [H]``; None when features are not read."""
    if switches.kv.fusion == "none" or not uses_context(switches):
        return None
    return nn.Linear(num_taps * config.hidden_size, config.hidden_size, bias=False)


def build_hidden_norm(config: Qwen3Config, switches: DrafterSwitches) -> nn.Module:
    """The norm after fusion; Identity for ``features.norm=false``."""
    if not switches.features.norm or not uses_context(switches):
        return nn.Identity()
    return Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


def fuse(target_hidden: Tensor, fc: nn.Linear | None, hidden_norm: nn.Module, size: int) -> Tensor:
    """Fuse ``[B, C, F*H]`` (``[B, C, H]`` without ``fc``) to the context ``[B, C, H]``.

    Where ``fc`` expects ``F*H`` channels, an input of ``H`` is taken as already fused and
    normalised and used as it is.

    Raises:
        UserError: any other number of channels.
    """
    channels = target_hidden.shape[-1]
    expected = size if fc is None else fc.in_features
    if channels == expected:
        return hidden_norm(target_hidden if fc is None else fc(target_hidden))
    if channels == size:
        return target_hidden
    raise UserError.of("target_hidden.shape[-1]", channels, f"{expected} or {size} channels")


def leave(inputs: Tensor, context: Tensor, latest: Tensor) -> Tensor:
    """The input embeddings as they are."""
    return inputs


def add_latest(inputs: Tensor, context: Tensor, latest: Tensor) -> Tensor:
    """Add each block's latest committed feature to all its slots; nothing when it has none."""
    rows, blocks = latest.shape
    size = context.shape[-1]
    index = latest.clamp(min=0)[:, :, None].expand(rows, blocks, size)
    features = context.gather(1, index) * (latest >= 0)[:, :, None]  # [B, N, H]
    slots = inputs.view(rows, blocks, -1, size)
    return (slots + features[:, :, None]).view(rows, -1, size)


INJECTIONS: dict[str, Injection] = {"fused": leave, "none": leave, "input": add_latest}
