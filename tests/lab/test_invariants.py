"""What an experiment promises to hold equal."""

from __future__ import annotations

import pytest

from dflash.lab.invariants import broken, parse_invariants
from dflash.model.errors import UserError

ARMS = ["control", "a", "b"]


def test_lines_are_read_and_written_alike():
    lines = ["same parameters", "same order except a", "same steps except a, b"]
    assert [str(item) for item in parse_invariants(lines, ARMS)] == lines


@pytest.mark.parametrize("line", ["parameters", "same", "same colour", "same order but a"])
def test_other_lines_are_refused(line):
    with pytest.raises(UserError, match="same WHAT except ARM"):
        parse_invariants([line], ARMS)


def test_what_differs_is_named_unless_exempt_or_not_known_yet():
    invariants = parse_invariants(["same parameters except a", "same order"], ARMS)
    control = {"parameters": 10}
    assert broken(invariants, "a", control, {"parameters": 11}) is None
    assert broken(invariants, "b", control, {"parameters": 10}) is None
    found = broken(invariants, "b", control, {"parameters": 11})
    assert found == "b breaks 'same parameters except a': 11, the control has 10"
    known = control | {"order": "x"}
    assert broken(invariants, "a", known, {"parameters": 11, "order": "y"}) is not None
