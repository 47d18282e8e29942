"""dflash-lab: an ablation laboratory for DFlash drafters.

``dflash_generate`` is the decode loop of :mod:`dflash.decoding`, loaded when it is first asked for,
so that importing one layer does not import those above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.lazy import attribute_loader

if TYPE_CHECKING:
    from dflash.decoding import dflash_generate

__all__ = ["dflash_generate"]

__getattr__ = attribute_loader(__name__, __all__, ("decoding",))
