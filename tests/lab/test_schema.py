from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dflash.lab.schema import (
    check_name,
    default_tree,
    difference,
    flatten,
    names_of,
    nearest,
    patched,
)
from dflash.model.errors import UserError


@dataclass(frozen=True)
class Inner:
    depth: int = 2
    taps: str | tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    source: str
    inner: Inner = field(default_factory=Inner)
    sets: dict[str, int] = field(default_factory=lambda: {"a": 1})


NAMES = ["source", "inner.depth", "inner.taps", "sets.*"]


def test_names_and_defaults_come_from_the_dataclass():
    assert list(names_of(Outer)) == NAMES
    tree = {"source": "???", "inner": {"depth": 2, "taps": [1, 2]}, "sets": {"a": 1}}
    assert default_tree(Outer) == tree


@pytest.mark.parametrize("name", ["source", "inner", "inner.depth", "sets", "sets.new"])
def test_valid_names(name):
    check_name(name, NAMES)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("inner.dept", "inner.depth"),
        ("depth", "inner.depth"),
        ("sets.a.b", "sets"),
        ("sorce", "source"),
    ],
)
def test_invalid_names_name_the_nearest(name, near):
    with pytest.raises(UserError, match=f"did you mean '{near}"):
        check_name(name, NAMES)


def test_nearest_prefers_the_same_last_part():
    assert nearest("attention.norm", ["attention.form", "features.norm"]) == "features.norm"


def test_flatten_accepts_dotted_and_nested_names_alike():
    assert flatten({"a": {"b": 1}, "c.d": 2}) == flatten({"a.b": 1, "c": {"d": 2}})
    with pytest.raises(UserError, match=r"a\.b is given twice"):
        flatten({"a": {"b": 1}, "a.b": 2})


def test_patched_leaves_the_original_alone():
    tree = {"a": {"b": 1, "c": [1]}}
    copy = patched(tree, {"a.b": 2})
    assert tree["a"]["b"] == 1
    assert difference(tree, copy) == {"a.b": (1, 2)}
    assert difference(tree, tree) == {}


def test_difference_sees_new_and_removed_names():
    assert difference({"a": {"x": 1}}, {"a": {"y": 1}}) == {"a.x": (1, None), "a.y": (None, 1)}
