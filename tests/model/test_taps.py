"""Tap placement: golden values, no duplicates, and messages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.model import (
    UserError,
    build_target_layer_ids,
    extract_context_feature,
    resolve_taps,
)
from dflash.model.taps import most_taps

# Number of decoder layers -> taps of the published checkpoints and of the default target.
GOLDEN = {
    28: [1, 7, 13, 19, 25],
    30: [1, 8, 14, 20, 27],
    32: [1, 8, 15, 22, 29],
    36: [1, 9, 17, 25, 33],
    40: [1, 10, 19, 28, 37],
    48: [1, 12, 23, 34, 45],
    64: [1, 16, 31, 46, 61],
}


@pytest.mark.parametrize(("layers", "ids"), GOLDEN.items())
def test_uniform_taps_are_the_published_ones(layers: int, ids: list[int]) -> None:
    assert build_target_layer_ids(layers, 5) == ids
    assert resolve_taps("uniform:5", layers) == tuple(ids)


def test_three_and_one_taps() -> None:
    assert build_target_layer_ids(36, 3) == [1, 17, 33]
    assert build_target_layer_ids(36, 1) == [18]


def test_named_thirds() -> None:
    assert resolve_taps("early", 30) == (0, 2, 4, 7, 9)
    assert resolve_taps("middle", 30) == (10, 12, 14, 17, 19)
    assert resolve_taps("late", 30) == (20, 22, 24, 27, 29)
    assert resolve_taps("last", 30) == (29,)


@given(layers=st.integers(1, 128), taps=st.integers(1, 12))
def test_uniform_taps_are_distinct_and_in_range_or_refused(layers: int, taps: int) -> None:
    if most_taps(layers, taps) < taps:
        with pytest.raises(UserError, match=f"uniform:{taps}"):
            build_target_layer_ids(layers, taps)
        return
    ids = build_target_layer_ids(layers, taps)
    assert len(set(ids)) == taps
    assert ids == sorted(ids)
    assert all(0 <= layer < layers for layer in ids)


@given(layers=st.integers(15, 128), name=st.sampled_from(["early", "middle", "late"]))
def test_thirds_stay_inside_their_third(layers: int, name: str) -> None:
    third = ("early", "middle", "late").index(name)
    ids = resolve_taps(name, layers)
    assert len(ids) == 5
    assert ids[0] == third * layers // 3
    assert ids[-1] == (third + 1) * layers // 3 - 1


@pytest.mark.parametrize(
    ("taps", "layers", "message"),
    [
        ((3, 7, 3), 12, "distinct"),
        ((3, 12), 12, "layers 0 to 11"),
        ((-1,), 12, "layers 0 to 11"),
        ("uniform:5", 6, "distinct"),
        ("early", 6, "distinct"),
    ],
)
def test_bad_taps_name_the_field(taps: object, layers: int, message: str) -> None:
    with pytest.raises(UserError, match=r"drafter\.features\.taps=.*" + message):
        resolve_taps(taps, layers)


def test_a_feature_is_the_output_of_its_layer() -> None:
    states = [torch.full((1, 2, 3), float(index)) for index in range(5)]  # embedding, 4 layers
    feature = extract_context_feature(states, [0, 3])
    assert feature.shape == (1, 2, 6)
    assert feature[0, 0].tolist() == [1, 1, 1, 4, 4, 4]
