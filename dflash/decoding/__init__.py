"""Speculative decoding, and acceptance by replay without the target."""

from dflash.decoding.config import DecodeConfig
from dflash.decoding.floors import LookupProposer, UnigramProposer, replay_floor
from dflash.decoding.replay import match_lengths, replay
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
    "replay",
    "replay_floor",
    "walk",
]
