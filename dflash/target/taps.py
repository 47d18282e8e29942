"""Reading the target's hidden states: the *output* of chosen decoder layers (contract: Taps).

Layer ids are 0-based decoder layers. What a hook on layer ``i`` sees equals ``hidden_states[i+1]``
of ``transformers`` for every layer but the last, whose entry there has passed the final norm; ours
is always the raw residual stream, so that one tap means one thing at any depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dflash.model.errors import UserError


class LastTapReached(Exception):
    """Ends a forward whose remaining layers nobody needs; never leaves this package."""


def decoder_of(model: nn.Module) -> nn.Module:
    """The module that owns the decoder layers: embedding, ``layers``, final norm, no head.

    Raises:
        UserError: the architecture exposes no such module.
    """
    get_decoder: Any = getattr(model, "get_decoder", lambda: None)
    candidates: list[Any] = [get_decoder(), getattr(model, "model", None), model]
    for candidate in candidates:
        if isinstance(getattr(candidate, "layers", None), nn.ModuleList):
            return candidate
    raise UserError.of(
        "target.source", type(model).__name__, "a causal LM whose decoder has a list of .layers"
    )


def layers_of(model: nn.Module) -> nn.ModuleList:
    """The decoder layers, in order."""
    layers = decoder_of(model).layers
    assert isinstance(layers, nn.ModuleList)  # decoder_of looked for exactly this
    return layers


class TapRecorder:
    """Record the outputs of decoder layers during the forwards inside a ``with`` block.

    Only the latest forward is kept: one decode cycle reads its features before it runs the next.

    Args:
        model: causal LM.
        taps: decoder layer ids, in the order in which features are concatenated.
        stop_after_last: end the forward at the highest tapped layer by raising
            :class:`LastTapReached`; the caller catches it.
    """

    def __init__(
        self, model: nn.Module, taps: Sequence[int], *, stop_after_last: bool = False
    ) -> None:
        self.layers = layers_of(model)
        self.taps = tuple(taps)
        self.stop_after_last = stop_after_last
        self._outputs: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        bad = [tap for tap in self.taps if not 0 <= tap < len(self.layers)]
        if bad or not self.taps or len(set(self.taps)) != len(self.taps):
            allowed = f"at least one, distinct, from 0 to {len(self.layers) - 1}"
            raise UserError.of("drafter.features.taps", list(self.taps), allowed)

    def __enter__(self) -> TapRecorder:
        for tap in self.taps:
            hook = self._hook(tap)
            self._handles.append(self.layers[tap].register_forward_hook(hook))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, tap: int) -> Any:
        last = tap == max(self.taps)

        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            # Older decoder layers return a tuple whose first entry is the hidden state.
            self._outputs[tap] = output[0] if isinstance(output, tuple) else output
            if last and self.stop_after_last:
                raise LastTapReached

        return record

    def features(self) -> Tensor:
        """Tapped states of the latest forward, ``[B, T, F*H]``, in the order of ``taps``."""
        missing = [tap for tap in self.taps if tap not in self._outputs]
        if missing:
            raise RuntimeError(f"no forward has passed layers {missing} since the taps were set")
        return torch.cat([self._outputs[tap] for tap in self.taps], dim=-1)
