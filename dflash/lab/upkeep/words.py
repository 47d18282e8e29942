"""Entries, sizes and ages in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from dflash.model.errors import UserError

WIDTH = 60  # characters of a description of a stage that has none of its own
AGES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
Config = Mapping[str, Any]


def describe(manifest: Mapping[str, Any]) -> str:
    """What an entry is, in a few words, from its manifest."""
    words = DESCRIPTIONS.get(manifest["stage"], _any)
    return words(manifest["config"])


def size_text(size: float) -> str:
    """Bytes with a binary unit: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_text(seconds: float) -> str:
    """The largest unit that is not below one: ``3d``, ``5h``."""
    for letter, unit in AGES.items():
        count = seconds / timedelta(**{unit: 1}).total_seconds()
        if count >= 1:
            return f"{count:.0f}{letter}"
    return "0s"


def parse_age(text: str) -> float:
    """Seconds of ``30d``, ``12h``, ``45m`` or ``10s``.

    Raises:
        UserError: anything else.
    """
    match = re.fullmatch(r"(\d+)([dhms])", text)
    if match is None:
        raise UserError.of("--older-than", text, "a number with d, h, m or s, for example 30d")
    return timedelta(**{AGES[match[2]]: int(match[1])}).total_seconds()


def _target(config: Config) -> str:
    return f"target {config['source']}, {config['dtype']}"


def _rollouts(config: Config) -> str:
    split = config["split"]
    sets = ", ".join(f"{name} {count}" for name, count in config[split].items() if count)
    return f"answers ({split}): {sets}; at most {config['new_tokens']} tokens"


def _features(config: Config) -> str:
    return f"features of layers {', '.join(map(str, config['taps']))}, {config['dtype']}"


def _train(config: Config) -> str:
    drafter, train = config["drafter"], config["train"]
    length = f"{train['steps']} steps" if train["steps"] else f"{train['epochs']} epochs"
    size = f"{drafter['num_layers']} layers, blocks of {drafter['block_size']}"
    return f"drafter: {size}, {length}, seed {config['seed']}"


def _pace(config: Config) -> str:
    return f"pace of training over {config['steps']} steps on {config['device']}"


def _replay(config: Config) -> str:
    return f"acceptance by replay, width {config['width'] or 'whole block'}"


def _decode(config: Config) -> str:
    count, tokens = config["prompts_per_bench"], config["new_tokens"]
    return f"decoding of {count} prompts a benchmark, at most {tokens} tokens"


def _floor(config: Config) -> str:
    return f"floor {config['name']}, width {config['width']}"


def _any(config: Config) -> str:
    text = json.dumps(config, sort_keys=True)
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


DESCRIPTIONS: dict[str, Callable[[Config], str]] = {
    "target": _target,
    "rollouts": _rollouts,
    "features": _features,
    "train": _train,
    "pace": _pace,
    "replay": _replay,
    "autoregressive": _decode,
    "decode": _decode,
    "floor": _floor,
}
