"""Switches: what is refused, and how the message reads."""

from __future__ import annotations

from typing import Any

import pytest

from dflash.model import DrafterSwitches, UserError, parse_dataclass


def parse(data: dict[str, Any]) -> DrafterSwitches:
    return parse_dataclass(DrafterSwitches, data, "drafter")


def test_defaults_are_the_papers() -> None:
    switches = parse({})
    assert switches == DrafterSwitches()
    assert (switches.num_layers, switches.block_size) == (5, 16)
    assert switches.context_keys
    assert switches.block_keys


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"num_layer": 3}, ["drafter.num_layer", "'num_layers'"]),
        ({"attention": {"qknorm": "q"}}, ["drafter.attention.qknorm", "'qk_norm'"]),
        ({"attention": {"qk_norm": "K"}}, ["drafter.attention.qk_norm='K'", "both"]),
        ({"attention": {"context": "window:0"}}, ["drafter.attention.context", "window:<n>"]),
        ({"attention": {"context": "windw:8"}}, ["drafter.attention.context='windw:8'"]),
        ({"attention": {"leak": -1}}, ["drafter.attention.leak=-1"]),
        ({"num_layers": "many"}, ["drafter.num_layers='many'"]),
        ({"num_layers": 0}, ["drafter.num_layers=0"]),
        ({"block_size": 1}, ["drafter.block_size=1"]),
        ({"features": {"taps": "uniform"}}, ["drafter.features.taps='uniform'"]),
        ({"features": {"taps": []}}, ["drafter.features.taps"]),
        ({"vocab": "top:none"}, ["drafter.vocab='top:none'", "top:<n>"]),
    ],
)
def test_one_line_names_field_and_value(data: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse(data)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "data",
    [
        {"kv": {"source": "target"}, "attention": {"context": "none"}},
        {"kv": {"source": "target", "fusion": "input"}},
        {"kv": {"fusion": "input"}, "attention": {"context": "none"}},
        {"kv": {"fusion": "input"}, "attention": {"context": "index_causal"}},
        {"kv": {"source": "draft"}, "attention": {"leak": 1}},
        {"kv": {"fusion": "input"}, "attention": {"leak": 1}},
        {"attention": {"context": "none", "leak": 1}},
    ],
)
def test_combinations_without_a_meaning_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^drafter\..* is not valid; allowed: "):
        parse(data)
