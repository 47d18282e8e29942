"""Dotted names: which exist, which is nearest to a misspelt one, and trees as flat mappings."""

from __future__ import annotations

import dataclasses
import difflib
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from dflash.model.errors import UserError

MISSING = "???"  # OmegaConf's mark of a value that must be given


def default_tree(cls: type) -> dict[str, Any]:
    """The defaults of a (nested) dataclass as plain data; ``???`` where there is none."""
    tree: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            tree[item.name] = default_tree(typing.cast(type, hint))
        elif item.default is not dataclasses.MISSING:
            tree[item.name] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            tree[item.name] = item.default_factory()
        else:
            tree[item.name] = MISSING
    return plain(tree)


def names_of(cls: type, prefix: str = "") -> Iterator[str]:
    """Every dotted leaf name of a (nested) dataclass.

    A field that is itself a free mapping (prompt set to count) yields ``name.*``.
    """
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        name = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(hint):
            yield from names_of(typing.cast(type, hint), f"{name}.")
        elif typing.get_origin(hint) is dict:
            yield f"{name}.*"
        else:
            yield name


def check_name(name: str, names: list[str]) -> None:
    """Accept a leaf name, a section that holds leaves, or a key of a free mapping.

    Raises:
        UserError: names the nearest valid dotted name.
    """
    for valid in names:
        stem = valid.removesuffix("*")
        if name in (valid, stem.rstrip(".")) or valid.startswith(f"{name}."):
            return
        if valid.endswith(".*") and name.startswith(stem) and "." not in name[len(stem) :]:
            return
    raise UserError(f"{name} is not a key; did you mean {nearest(name, names)!r}?")


def nearest(name: str, names: list[str]) -> str:
    """The most similar name; a bare last part (``qk_norm``) finds its dotted home."""
    homes = [valid for valid in names if valid.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1]]
    candidates = homes or names
    return difflib.get_close_matches(name, candidates, n=1, cutoff=0.0)[0]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` and ``{"a.b": 1}`` both become ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            inner = flatten(value, f"{name}.")
        else:
            inner = {name: value}
        twice = flat.keys() & inner.keys()
        if twice:
            raise UserError(f"{sorted(twice)[0]} is given twice")
        flat |= inner
    return flat


def patched(tree: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``tree`` with the dotted names of ``patch`` set."""
    copy = plain(tree)
    for name, value in patch.items():
        node = copy
        *sections, last = name.split(".")
        for section in sections:
            node = node[section]
        node[last] = value
    return copy


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted names whose value differs, each with (before, after); an absent value is None."""
    old, new = flatten(before), flatten(after)
    names = [*old, *(name for name in new if name not in old)]
    pairs = {name: (old.get(name), new.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def plain(data: Any) -> Any:
    """A deep copy made of dictionaries, lists, strings and numbers only."""
    return json.loads(json.dumps(data))
