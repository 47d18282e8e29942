"""Full factorials: names and refusals."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.lab.factorial import cells
from dflash.model.errors import UserError


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.data())
def test_every_combination_but_the_control_occurs_once(sizes, data):
    grid = {f"part.switch{index}": list(range(size)) for index, size in enumerate(sizes)}
    control = {name: data.draw(st.sampled_from(values)) for name, values in grid.items()}
    arms = cells(grid, {"part": {name.split(".")[1]: value for name, value in control.items()}})
    everything = [dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())]
    assert sorted(map(str, arms.values())) == sorted(
        str(levels) for levels in everything if levels != control
    )


def test_names_tell_factors_with_equal_last_parts_apart():
    grid = {"a.x.norm": [True, False], "b.y.norm": ["on", "off"], "taps": [[1, 2], [3]]}
    tree = {"a": {"x": {"norm": True}}, "b": {"y": {"norm": "on"}}, "taps": [1, 2]}
    arms = cells(grid, tree)
    assert list(arms)[:3] == ["taps-3", "y.norm-off", "y.norm-off+taps-3"]
    assert "x.norm-false" in arms


def test_levels_with_equal_names_are_refused():
    with pytest.raises(UserError, match=r"grid='taps-1\.2'"):
        cells({"taps": ["x", [1, 2], "1.2"]}, {"taps": "x"})
