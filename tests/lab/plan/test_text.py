"""Quantities as people read them."""

from __future__ import annotations

import pytest

from dflash.lab.plan.text import WIDTH, duration, paragraph, scaled, size, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1, "1"),
        (999, "999"),
        (999.9, "1 k"),
        (1000, "1 k"),
        (123456, "123 k"),
        (999_999, "1 M"),
        (5.2e6, "5.2 M"),
        (3.63e20, "363 E"),
        (1e25, "10000 Z"),
    ],
)
def test_three_digits_and_a_prefix(value, text):
    assert scaled(value, "") == text


def test_units():
    assert size(38e12) == "38 TB"
    assert scaled(1e9, "FLOP") == "1 GFLOP"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"),
        (59, "59 s"),
        (60, "1 min"),
        (5400, "1.5 h"),
        (86400, "24 h"),
        (172800, "2 days"),
        (2e8, "2315 days"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_text_wraps_under_itself_and_tables_keep_names_whole():
    lines = paragraph("paper", "word " * 60)
    assert max(map(len, lines)) <= WIDTH
    assert lines[1].startswith(" " * 14 + "word")
    rows = table(["arm", "x"], [["a" * 40, "1"], ["b", "22"]])
    assert rows[2] == f"  {'a' * 40}    1"
    assert rows[3].endswith(" 22")
