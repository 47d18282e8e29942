"""The drawn mask shows what the mask code says, and nothing else."""

from __future__ import annotations

import pytest
import torch

from dflash.model.drawing import LEAKED, LEFT_OUT, SEEN, draw_mask, same_mask, training_mask
from dflash.model.masks import Visibility, decode_mask
from tests.model.toys import AXES, pairwise_combinations, toy_switches


def drawn_rows(lines: list[str]) -> list[list[str]]:
    """The cells of every slot's row, without labels and borders."""
    rows = [line for line in lines if line.startswith(("anchor", "slot"))]
    return [[cell for cell in row[14:].split() if cell != "│"] for row in rows]


def test_the_papers_mask_in_full():
    assert draw_mask(toy_switches(block_size=3)) == [
        "              features  │ ahead │ block",
        "                        │     1 │     1",
        "position      0 1   6 7 │ 8 9 0 │ 8 9 0",
        "anchor     8  ■ ■ … ■ ■ │ · · · │ ■ ■ ■",
        "slot 1     9  ■ ■ … ■ ■ │ · · · │ ■ ■ ■",
        "slot 2    10  ■ ■ … ■ ■ │ · · · │ ■ ■ ■",
    ]


def test_a_window_shows_its_edge():
    rows = drawn_rows(draw_mask(toy_switches(attention__context="window:64")))
    assert rows[0][:7] == ["·", "·", "·", "■", "…", "■", "■"]


def test_a_leak_is_marked_and_stops_where_it_should():
    rows = drawn_rows(draw_mask(toy_switches(attention__leak=2)))
    for row in rows:
        assert row[5:8] == [LEAKED, LEAKED, "·"]


def test_a_drafter_without_a_kind_of_keys_has_no_such_columns():
    assert "block" not in draw_mask(toy_switches(kv__source="target"))[0]
    assert "features" not in draw_mask(toy_switches(kv__source="draft"))[0]
    assert "features" not in draw_mask(toy_switches(kv__fusion="input"))[0]


@pytest.mark.parametrize("switches", pairwise_combinations(AXES), ids=repr)
def test_training_and_decoding_see_the_same(switches):
    """The mask that is drawn is the decode step's, with the features ahead cut away."""
    anchor, ahead, slots = 7, 3, switches.block_size
    mask = training_mask(switches, anchor, ahead)
    if switches.context_keys:
        assert not mask[:, anchor : anchor + ahead].any()
        mask = torch.cat([mask[:, :anchor], mask[:, anchor + ahead :]], dim=1)
    visibility = Visibility.of(switches, training=False)
    expected = decode_mask(visibility, anchor, slots, torch.device("cpu"))
    assert torch.equal(mask, torch.ones_like(mask) if expected is None else expected[0, 0])


@pytest.mark.parametrize("block", [4, 16, 24])
@pytest.mark.parametrize("context", ["full", "window:3", "window:500"])
def test_a_drawing_fits_a_hundred_columns(block, context):
    for line in draw_mask(toy_switches(block_size=block, attention__context=context)):
        assert len(line) <= 100


def test_columns_left_out_equal_their_neighbours():
    """Every mark can be found again in the mask, at the position above it."""
    switches = toy_switches(attention__context="window:5", attention__block="causal")
    lines = draw_mask(switches)
    mask = training_mask(switches, 8, 3)
    columns = [0, 1, 2, 3]  # before the columns left out
    for slot, row in enumerate(drawn_rows(lines)):
        assert [mark == SEEN for mark in row[:4]] == mask[slot, columns].tolist()
        assert row[4] == LEFT_OUT


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"num_layers": 3}, True),
        ({"attention__qk_norm": "none"}, True),
        ({"rope__context": False}, True),
        ({"attention__context": "window:64"}, False),
        ({"attention__context": "latest"}, False),
        ({"attention__block": "causal"}, False),
        ({"attention__leak": 1}, False),
        ({"block_size": 5}, False),
        ({"kv__source": "draft"}, False),
    ],
)
def test_which_arms_share_the_controls_mask(change, same):
    assert same_mask(toy_switches(), toy_switches(**change)) is same
