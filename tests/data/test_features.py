from __future__ import annotations

import json

import pytest
import torch

from dflash.data.features import FeatureStore, OnlineFeatures, build_features
from dflash.model.errors import UserError
from tests.data.toys import made_up, small_target

ROLLOUTS = made_up([(3, 5), (2, 2), (4, 9), (1, 1), (6, 3)])
TAPS = (0, 2)


@pytest.fixture(scope="module")
def target():
    return small_target()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stored_features_equal_computed_ones_bit_for_bit(target, dtype, tmp_path):
    store = build_features(target, ROLLOUTS, TAPS, dtype, tmp_path, progress=False)
    online = OnlineFeatures(target, ROLLOUTS, TAPS, dtype)
    assert len(store) == len(ROLLOUTS)
    for index, rollout in enumerate(ROLLOUTS):
        tokens = torch.as_tensor(rollout.token_ids).long()[None]
        expected = target.features(tokens, TAPS)[0].to(getattr(torch, dtype))
        assert expected.shape == (len(rollout.token_ids), 2 * target.hidden_size)
        assert torch.equal(store.row(index), expected)
        assert torch.equal(online.row(index), expected)
        assert store.row(index).dtype == expected.dtype


def test_bf16_halves_the_file(target, tmp_path):
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        build_features(target, ROLLOUTS, TAPS, dtype, tmp_path / dtype, progress=False)
        sizes[dtype] = (tmp_path / dtype / "features.bin").stat().st_size
    assert sizes["float32"] == 2 * sizes["bfloat16"]


def count_rows(monkeypatch, stop_before: int | None = None) -> list[int]:
    """Record which rows the target is run on; optionally fail at one of them."""
    asked: list[int] = []
    row = OnlineFeatures.row

    def counted(self, index):
        if index == stop_before:
            raise OSError("killed")
        asked.append(index)
        return row(self, index)

    monkeypatch.setattr(OnlineFeatures, "row", counted)
    return asked


# bytes per token: 2 taps of 16 channels in fp32; sequences end at 8, 12, 25, 27 and 36 tokens
@pytest.mark.parametrize(
    ("kept", "again"),
    [
        (0, [0, 1, 2, 3, 4]),
        (8 * 128 - 1, [0, 1, 2, 3, 4]),
        (8 * 128, [1, 2, 3, 4]),
        (20 * 128 + 3, [2, 3, 4]),
        (36 * 128, []),
    ],
)
def test_a_torn_file_is_continued_at_the_last_whole_sequence(
    target, tmp_path, monkeypatch, kept, again
):
    build_features(target, ROLLOUTS, TAPS, "float32", tmp_path / "whole", progress=False)
    whole = (tmp_path / "whole" / "features.bin").read_bytes()
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "features.part").write_bytes(whole[:kept])
    asked = count_rows(monkeypatch)
    build_features(target, ROLLOUTS, TAPS, "float32", torn, progress=False)
    assert asked == again
    assert (torn / "features.bin").read_bytes() == whole


def test_a_failed_run_is_continued(target, tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        count_rows(patch, stop_before=3)
        with pytest.raises(OSError, match="killed"):
            build_features(target, ROLLOUTS, TAPS, "float32", tmp_path, progress=False)
    assert not (tmp_path / "features.bin").exists()
    asked = count_rows(monkeypatch)
    store = build_features(target, ROLLOUTS, TAPS, "float32", tmp_path, progress=False)
    assert asked == [3, 4]
    assert torch.equal(store.row(1), OnlineFeatures(target, ROLLOUTS, TAPS, "float32").row(1))


def test_what_is_finished_is_not_computed_again(target, tmp_path, monkeypatch):
    build_features(target, ROLLOUTS, TAPS, "float32", tmp_path, progress=False)
    asked = count_rows(monkeypatch)
    build_features(target, ROLLOUTS, TAPS, "float32", tmp_path, progress=False)
    assert asked == []


def test_a_truncated_store_is_named(target, tmp_path):
    build_features(target, ROLLOUTS, TAPS, "float32", tmp_path, progress=False)
    path = tmp_path / "features.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match=r"features\.bin.*4603 bytes.*4608 bytes"):
        FeatureStore(tmp_path)


def test_meta_says_what_is_stored(target, tmp_path):
    build_features(target, ROLLOUTS, TAPS, "bfloat16", tmp_path, progress=False)
    meta = json.loads((tmp_path / "features.json").read_text())
    assert meta == {
        "lengths": [8, 4, 13, 2, 9],
        "width": 32,
        "dtype": "bfloat16",
        "taps": [0, 2],
    }


def test_rows_are_mapped_not_loaded(target, tmp_path):
    build_features(target, ROLLOUTS, TAPS, "float32", tmp_path, progress=False)
    store = FeatureStore(tmp_path)
    assert store.row(2).data_ptr() == store.row(0).data_ptr() + 12 * 128
