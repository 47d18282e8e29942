"""The frozen target: loading, taps, chat template, mask token, and an oracle for tests."""

from typing import TYPE_CHECKING

from dflash.lazy import attribute_loader

if TYPE_CHECKING:
    from dflash.target.config import TargetConfig
    from dflash.target.load import Target, load_target
    from dflash.target.mask_token import check_mask_token, looks_unused
    from dflash.target.taps import TapRecorder
    from dflash.target.template import ChatTemplate

__all__ = [
    "ChatTemplate",
    "TapRecorder",
    "Target",
    "TargetConfig",
    "check_mask_token",
    "load_target",
    "looks_unused",
]

MODULES = ("config", "template", "taps", "mask_token", "load")

__getattr__ = attribute_loader(__name__, __all__, MODULES)
