"""Switch combinations in which every pair of values of two switches occurs, if it is allowed."""

from __future__ import annotations

import itertools
import random
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dflash.model import DrafterSwitches

ADAPTER = TypeAdapter(DrafterSwitches)

VALUES: dict[str, list[Any]] = {
    "num_layers": [1, 2],
    "block_size": [2, 4, 5],
    "attention.block": ["bidirectional", "causal", "diagonal"],
    "attention.context": ["full", "window:3", "latest", "index_causal", "none"],
    "attention.leak": [0, 2],
    "attention.qk_norm": ["both", "q", "k", "none"],
    "attention.qk_norm_place": ["pre_rope", "post_rope"],
    "kv.source": ["target+draft", "draft", "target"],
    "kv.projection": ["shared", "separate"],
    "kv.fusion": ["fused", "input", "none"],
    "features.taps": ["uniform:1", [0, 2], "last"],
    "features.norm": [True, False],
    "rope.context": [True, False],
    "mask_embedding": ["reserved", "learned", "mean", "zero"],
    "vocab": ["full", "top:4"],
}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted names to nested dictionaries."""
    data: dict[str, Any] = {}
    for name, value in flat.items():
        group, _, key = name.rpartition(".")
        (data.setdefault(group, {}) if group else data)[key or name] = value
    return data


def allowed(flat: dict[str, Any]) -> bool:
    """Do the switches accept this combination?"""
    try:
        ADAPTER.validate_python(nested(flat))
    except ValidationError:
        return False
    return True


def pairs(flat: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """All pairs of (switch, value) in one combination."""
    return {(a, repr(flat[a]), b, repr(flat[b])) for a, b in itertools.combinations(flat, 2)}


def combinations(seed: int = 0, tries: int = 100) -> list[dict[str, Any]]:
    """Cover pair after pair: of ``tries`` random completions take the one with most new pairs.

    A pair none of whose completions is allowed is taken for forbidden.
    """
    source = random.Random(seed)
    seen: set[tuple[str, str, str, str]] = set()
    chosen = []
    for a, b in itertools.combinations(VALUES, 2):
        for x, y in itertools.product(VALUES[a], VALUES[b]):
            if (a, repr(x), b, repr(y)) in seen:
                continue
            drawn = [{k: source.choice(v) for k, v in VALUES.items()} for _ in range(tries)]
            fitting = [flat for flat in ({**d, a: x, b: y} for d in drawn) if allowed(flat)]
            if fitting:
                chosen.append(max(fitting, key=lambda flat: len(pairs(flat) - seen)))
                seen |= pairs(chosen[-1])
    return chosen
