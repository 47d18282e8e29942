"""The drafter's config file: the public checkpoints' layout, plus one key of ours.

Public layout (paper §1.1 and its released checkpoints): a Qwen3 config whose ``num_hidden_layers``
counts draft layers, with ``num_target_layers``, ``block_size`` and ``dflash_config:
{target_layer_ids, mask_token_id, block_size}``. Switches that differ from the paper's live under
the extra key ``dflash_lab``, which is absent at defaults, so default drafters load anywhere.

A plain Qwen3 config has none of these fields. It then gets the paper's values: block size 16, five
uniform taps (fewer when its layers are too few for five distinct ones), and a target as deep as the
config itself. It has no mask token; code that needs one says so.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from transformers import PretrainedConfig, Qwen3Config

from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches, FeatureSwitches, parse_dataclass
from dflash.model.taps import build_target_layer_ids, most_taps, resolve_taps

LAB_KEY = "dflash_lab"
VOCAB_HASH_KEY = "d2t_sha256"  # of the draft vocabulary of ``vocab=top:<n>``; under LAB_KEY
_PUBLIC_KEYS = ("target_layer_ids", "mask_token_id", "block_size")
_ELSEWHERE = ("num_layers", "block_size")  # switches that the public layout already has a place for
# Fields the reference wheel acts on and this model does not, with the values that mean "off".
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "is_causal": (None, False),
    "input_embedding_scale": (None, 1),
    "output_multiplier": (None, 1),
    "final_logit_softcapping": (None, 0),
    "conv_kernel_size": (None,),
    "conv_group_size": (None,),
    "selector_rank": (None,),
    "selector_top_k": (None,),
}


def drafter_config(
    target_config: PretrainedConfig, switches: DrafterSwitches, mask_token_id: int | None
) -> Qwen3Config:
    """A drafter for one target: its sizes, vocabulary and rotary settings, our switches.

    Args:
        target_config: the target's Hugging Face config (Qwen3, Llama and their relatives).
        switches: the drafter's switches; taps are resolved against the target's depth.
        mask_token_id: an unused row of the target's embedding, or None when not needed.

    Raises:
        UserError: the taps do not fit the target, or its config lacks a size a drafter needs.
    """
    target = target_config.get_text_config()
    taps = resolve_taps(switches.features.taps, target.num_hidden_layers)
    public: dict[str, Any] = {"target_layer_ids": list(taps), "block_size": switches.block_size}
    if mask_token_id is not None:
        public["mask_token_id"] = mask_token_id
    lab = _non_default(switches)
    sizes = _sizes(target)
    if switches.mlp_size is not None:
        sizes["intermediate_size"] = switches.mlp_size
    config = Qwen3Config(
        **sizes,
        num_hidden_layers=switches.num_layers,
        architectures=["DFlashDraftModel"],
        num_target_layers=target.num_hidden_layers,
        block_size=switches.block_size,
        dflash_config=public,
        **({LAB_KEY: lab} if lab else {}),
    )
    check_supported(config)
    return config


def _sizes(target: PretrainedConfig) -> dict[str, Any]:
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    for name in (*needed, "rope_parameters"):
        if getattr(target, name, None) is None:
            raise UserError.of(f"target.{name}", None, "a decoder config that has it")
    heads = target.num_attention_heads
    return {
        **{name: getattr(target, name) for name in needed},
        "num_key_value_heads": getattr(target, "num_key_value_heads", None) or heads,
        "head_dim": getattr(target, "head_dim", None) or target.hidden_size // heads,
        "hidden_act": getattr(target, "hidden_act", "silu"),
        "rms_norm_eps": getattr(target, "rms_norm_eps", 1e-6),
        "max_position_embeddings": target.max_position_embeddings,
        "rope_parameters": copy.deepcopy(target.rope_parameters),
        "attention_bias": bool(getattr(target, "attention_bias", False)),
    }


def _non_default(switches: DrafterSwitches) -> dict[str, Any]:
    """Nested plain data of the switches that differ from the paper's, as JSON reads it back."""

    def difference(ours: dict[str, Any], paper: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name, value in ours.items():
            if isinstance(value, dict):
                value = difference(value, paper[name])
                if value:
                    changed[name] = value
            elif value != paper[name]:
                changed[name] = list(value) if isinstance(value, tuple) else value
        return changed

    lab = difference(dataclasses.asdict(switches), dataclasses.asdict(DrafterSwitches()))
    return {name: value for name, value in lab.items() if name not in _ELSEWHERE}


def switches_of(config: PretrainedConfig) -> DrafterSwitches:
    """Read the switches back from a drafter's config.

    Raises:
        UserError: a lab switch is misspelt or contradicts the public fields.
    """
    lab = dict(getattr(config, LAB_KEY, None) or {})
    lab.pop(VOCAB_HASH_KEY, None)
    for name in _ELSEWHERE:
        if name in lab:
            raise UserError.of(f"{LAB_KEY}.{name}", lab[name], "its place in the public layout")
    lab["num_layers"] = config.num_hidden_layers
    lab["block_size"] = _public(config, "block_size", DrafterSwitches.block_size)
    switches = parse_dataclass(DrafterSwitches, lab, LAB_KEY)
    if switches.mlp_size not in (None, config.intermediate_size):
        raise UserError.of("intermediate_size", config.intermediate_size, f"{switches.mlp_size}")
    ids = target_layer_ids(config)
    if "taps" in lab.get("features", {}):
        named = resolve_taps(switches.features.taps, num_target_layers(config))
        if named != ids:
            raise UserError.of("dflash_config.target_layer_ids", list(ids), f"{list(named)}")
        return switches
    taps = FeatureSwitches.taps if ids == _paper_taps(config) else ids
    return dataclasses.replace(switches, features=dataclasses.replace(switches.features, taps=taps))


def _paper_taps(config: PretrainedConfig) -> tuple[int, ...] | None:
    depth = num_target_layers(config)
    fits = most_taps(depth, 5) == 5
    return resolve_taps(FeatureSwitches.taps, depth) if fits else None


def num_target_layers(config: PretrainedConfig) -> int:
    """Decoder layers of the target; a plain config stands for its own target."""
    return int(getattr(config, "num_target_layers", None) or config.num_hidden_layers)


def target_layer_ids(config: PretrainedConfig) -> tuple[int, ...]:
    """The tapped layers: given, else as many as draft layers (the oldest public checkpoints), else
    the paper's five.

    Raises:
        UserError: an id is out of range or occurs twice.
    """
    depth = num_target_layers(config)
    given = _public(config, "target_layer_ids", None)
    if given is not None:
        stated = getattr(config, "num_target_layers", None) is not None
        return resolve_taps(tuple(given), depth if stated else max(depth, *given) + 1)
    if getattr(config, "num_target_layers", None) is not None:
        return tuple(build_target_layer_ids(depth, config.num_hidden_layers))
    return tuple(build_target_layer_ids(depth, most_taps(depth, 5)))


def mask_token_id(config: PretrainedConfig) -> int | None:
    """The mask token of the reserved mask embedding, if the config names one."""
    value = _public(config, "mask_token_id", None)
    return None if value is None else int(value)


def _public(config: PretrainedConfig, name: str, default: Any) -> Any:
    """A DFlash field, from ``dflash_config`` or the top level; public checkpoints use both."""
    inner = getattr(config, "dflash_config", None) or {}
    return inner.get(name, getattr(config, name, default))


def check_supported(config: PretrainedConfig) -> None:
    """Refuse every field that would change the model and that this implementation does not have.

    Raises:
        UserError: sliding-window layers, fields of other DFlash generations, partial rotary
            embeddings, or an unknown key of ``dflash_config``.
    """
    if "sliding_attention" in (config.layer_types or ()):
        raise UserError.of("layer_types", "sliding_attention", "full_attention in every layer")
    inner = getattr(config, "dflash_config", None) or {}
    for name, off in _UNSUPPORTED.items():
        value = inner.get(name, getattr(config, name, None))
        if value not in off:
            raise UserError.of(name, value, "not set: this model does not implement it")
    for name in inner:
        if name not in _PUBLIC_KEYS and name not in _UNSUPPORTED:
            raise UserError.of(f"dflash_config.{name}", inner[name], ", ".join(_PUBLIC_KEYS))
    partial = (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UserError.of("rope_parameters.partial_rotary_factor", partial, "1.0")
