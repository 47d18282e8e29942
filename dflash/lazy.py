"""Public names that are loaded when they are first asked for.

A package's light modules (switches, errors, configurations) can then be imported without PyTorch
and transformers, whose import takes seconds: the command line refuses bad input at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def attribute_loader(
    package: str, names: Sequence[str], modules: Sequence[str]
) -> Callable[[str], Any]:
    """A package's ``__getattr__`` (PEP 562).

    Args:
        names: the public ones.
        modules: of the package, that define them; searched in this order, so light ones first.
    """

    def load(name: str) -> Any:
        if name in names:
            for module in modules:
                defined = import_module(f"{package}.{module}")
                if hasattr(defined, name):
                    return getattr(defined, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
