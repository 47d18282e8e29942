"""dflash-lab: an ablation laboratory for DFlash drafters.

``dflash_generate`` is the decode loop of :mod:`dflash.decoding`, loaded when it is first asked for,
so that importing one layer does not import those above it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["dflash_generate"]


def __getattr__(name: str) -> Any:
    if name == "dflash_generate":
        from dflash.decoding import dflash_generate

        return dflash_generate
    raise AttributeError(f"module 'dflash' has no attribute {name!r}")
