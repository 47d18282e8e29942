"""Full factorials: every combination of the levels of several switches as arms (``grid:``)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash.lab.schema import flatten
from dflash.model.errors import UserError

Levels = dict[str, Any]  # dotted name -> this cell's value


def cells(grid: Mapping[str, Sequence[Any]], control: Mapping[str, Any]) -> dict[str, Levels]:
    """Arm name -> levels of every combination except the control's, in the order of the factors.

    An arm is named by the levels in which it differs from the control:
    ``fusion-input+block-causal``.

    Args:
        grid: dotted name -> values, the control's among them.
        control: the control's resolved configuration as a tree.

    Raises:
        UserError: a factor with fewer than two distinct values, or without the control's; values
            whose names are equal.
    """
    flat = flatten(control)
    for name, values in grid.items():
        _check_factor(name, values, flat.get(name))
    short = _short_names(list(grid))
    arms: dict[str, Levels] = {}
    for combination in itertools.product(*grid.values()):
        levels = dict(zip(grid, combination, strict=True))
        changed = [name for name, value in levels.items() if value != flat.get(name)]
        if not changed:
            continue
        arm = "+".join(f"{short[name]}-{_word(levels[name])}" for name in changed)
        if arm in arms:
            raise UserError.of("grid", arm, "levels whose names differ in letters or digits")
        arms[arm] = levels
    return arms


def _check_factor(name: str, values: Any, control: Any) -> None:
    field = f"grid.{name}"
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) < 2:
        raise UserError.of(field, values, "a list of at least two values")
    if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
        raise UserError.of(field, list(values), "distinct values")
    if control not in values:
        raise UserError.of(field, list(values), f"a list that holds the control's {control!r}")


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """The last part of every dotted name; two parts where that is not unique."""
    last = [name.rpartition(".")[2] for name in names]
    return {
        name: end if last.count(end) == 1 else ".".join(name.split(".")[-2:])
        for name, end in zip(names, last, strict=True)
    }


def _word(value: Any) -> str:
    """A value as part of an arm's name: letters, digits, dots."""
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.]+", ".", text).strip(".")
