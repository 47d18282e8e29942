"""What is made of a frozen weight, remembered for as long as the weight is what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")


class MadeOf(Generic[T]):
    """Values by the weight they were made of; entries go with their weights.

    A weight that was changed in place is another weight.
    """

    def __init__(self, make: Callable[[Tensor], T]) -> None:
        self._make = make
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # -> (version, value)

    def __call__(self, weight: Tensor) -> T:
        """The value for ``weight``, made at most once for every version of it."""
        if weight not in self._known or self._known[weight][0] != weight._version:
            with torch.inference_mode(False), torch.no_grad():  # training may use it, too
                self._known[weight] = weight._version, self._make(weight)
        value: T = self._known[weight][1]
        return value
