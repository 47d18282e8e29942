"""The drafter: its switches, its parts, its masks, and its checkpoint layout."""

from typing import TYPE_CHECKING

from dflash.lazy import attribute_loader

if TYPE_CHECKING:
    from dflash.model.attention import AttentionComponents, Qwen3DFlashAttention
    from dflash.model.cache import crop_to, new_cache
    from dflash.model.config import drafter_config, switches_of
    from dflash.model.drafter import DFlashDraftModel
    from dflash.model.errors import UserError
    from dflash.model.layer import Qwen3DFlashDecoderLayer
    from dflash.model.layout import TrainingLayout
    from dflash.model.switches import (
        AttentionSwitches,
        DrafterSwitches,
        FeatureSwitches,
        KVSwitches,
        RopeSwitches,
        parse_dataclass,
    )
    from dflash.model.taps import build_target_layer_ids, extract_context_feature, resolve_taps

__all__ = [
    "AttentionComponents",
    "AttentionSwitches",
    "DFlashDraftModel",
    "DrafterSwitches",
    "FeatureSwitches",
    "KVSwitches",
    "Qwen3DFlashAttention",
    "Qwen3DFlashDecoderLayer",
    "RopeSwitches",
    "TrainingLayout",
    "UserError",
    "build_target_layer_ids",
    "crop_to",
    "drafter_config",
    "extract_context_feature",
    "new_cache",
    "parse_dataclass",
    "resolve_taps",
    "switches_of",
]

MODULES = (
    "errors",
    "switches",
    "taps",
    "cache",
    "config",
    "layout",
    "attention",
    "layer",
    "drafter",
)

__getattr__ = attribute_loader(__name__, __all__, MODULES)
