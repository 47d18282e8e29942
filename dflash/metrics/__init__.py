"""Additive acceptance counters and the estimators read off them."""

from dflash.metrics.acceptance import AcceptanceCounter
from dflash.metrics.prefix import HoleRule, prefix_length
from dflash.metrics.survival import MarginalCounter, SurvivalCounter

__all__ = [
    "AcceptanceCounter",
    "HoleRule",
    "MarginalCounter",
    "SurvivalCounter",
    "prefix_length",
]
