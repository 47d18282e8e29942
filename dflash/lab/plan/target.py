"""The target of a plan: what the store knows of it, else what its config says."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.lab.provenance import device_name
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import TargetInfo, target_info, target_key
from dflash.lab.store import Key
from dflash.model.errors import UserError
from dflash.target import TargetConfig
from dflash.target.load import device_of
from dflash.target.published import PUBLISHED, described_config, hub_answers, is_local

UNKNOWN = "unknown"  # fingerprint of a target that the store does not hold: no key finds anything


@dataclass(frozen=True)
class PlannedTarget:
    """A target that was not loaded.

    Attributes:
        info: with a fingerprint that matches nothing where the store does not hold the target.
        sizes_from: where the sizes come from, in words.
        stored: the store holds it, so what else it holds can be told.
    """

    info: TargetInfo
    sizes_from: str
    stored: bool


def planned_target(lab: Lab, config: TargetConfig) -> PlannedTarget:
    """Describe a target without loading it.

    Raises:
        UserError: neither the store nor the model nor the table of published sizes knows it.
    """
    key = _key(config)
    if key is not None and lab.store.has(key):
        return PlannedTarget(target_info(lab, config), "the stored target", True)
    hf_config, words = described_config(config)
    info = TargetInfo(
        fingerprint=UNKNOWN,
        template_hash=UNKNOWN,
        attention=config.attn_implementation,
        num_layers=hf_config.get_text_config(decoder=True).num_hidden_layers,
        device=device_name(str(device_of(config.device))),
        hf_config=hf_config,
    )
    return PlannedTarget(info, words, False)


def _key(config: TargetConfig) -> Key | None:
    """None where the hub would have to name the version and does not."""
    if not is_local(config.source) and not hub_answers():
        return None
    try:
        return target_key(config)
    except UserError:
        if config.source not in PUBLISHED:
            raise
        return None
