"""Speculative decoding, and acceptance by replay without the target.

``replay`` itself is in :mod:`dflash.decoding.replay`, whose name it bears.
"""

from typing import TYPE_CHECKING

from dflash.lazy import attribute_loader

if TYPE_CHECKING:
    from dflash.decoding.config import DecodeConfig
    from dflash.decoding.floors import LookupProposer, UnigramProposer, replay_floor
    from dflash.decoding.replay import match_lengths
    from dflash.decoding.rows import ReplayRow, walk
    from dflash.decoding.speculative import Generation, Step, dflash_generate

__all__ = [
    "DecodeConfig",
    "Generation",
    "LookupProposer",
    "ReplayRow",
    "Step",
    "UnigramProposer",
    "dflash_generate",
    "match_lengths",
    "replay_floor",
    "walk",
]

MODULES = ("config", "rows", "floors", "replay", "speculative")

__getattr__ = attribute_loader(__name__, __all__, MODULES)
