"""Parity with the reference implementation's wheel: forward, cached decoding, checkpoints.

``DFLASH_REFERENCE`` names a directory made by ``pip install --no-deps --target DIR dflash==0.1.0``.
Its import name is ours, so its model file is loaded by path under another name.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import Qwen3Config

from dflash.model import (
    DFlashDraftModel,
    DrafterSwitches,
    crop_to,
    drafter_config,
    new_cache,
    parse_dataclass,
)
from tests.model.toys import MASK_TOKEN, target_config


@pytest.fixture(scope="session")
def reference(reference_dir: Path) -> ModuleType:
    path = reference_dir / "dflash" / "model.py"
    spec = importlib.util.spec_from_file_location("dflash_reference_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes of a target and a drafter; query heads share key/value heads in every ratio."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return {
        "num_layers": draw(st.integers(1, 8)),
        "block_size": draw(st.integers(2, 16)),
        "taps": draw(st.integers(1, 6)),
        "num_hidden_layers": draw(st.integers(16, 36)),
        "hidden_size": kv_heads * group * draw(st.integers(2, 5)),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 6)),
        "attention_bias": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from([1e4, 1e6])),
    }


def config_of(shape: dict[str, Any]) -> Qwen3Config:
    shape = dict(shape)
    switches = parse_dataclass(
        DrafterSwitches,
        {
            "num_layers": shape.pop("num_layers"),
            "block_size": shape.pop("block_size"),
            "features": {"taps": f"uniform:{shape.pop('taps')}"},
        },
        "drafter",
    )
    rope = {"rope_type": "default", "rope_theta": shape.pop("rope_theta")}
    return drafter_config(target_config(rope_parameters=rope, **shape), switches, MASK_TOKEN)


def twins(reference: ModuleType, shape: dict[str, Any], seed: int) -> tuple[nn.Module, nn.Module]:
    """The same weights in both implementations."""
    torch.manual_seed(seed)
    config = config_of(shape)
    ours = DFlashDraftModel(config).eval()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.uniform_(0.5, 1.5) if "norm" in name else parameter.normal_(std=0.1)
    theirs = reference.DFlashDraftModel(config).eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs


quick = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(shape=shapes(), context=st.integers(0, 40), rows=st.integers(1, 3), seed=st.integers(0, 99))
@torch.no_grad()
def test_forward(
    reference: ModuleType, shape: dict[str, Any], context: int, rows: int, seed: int
) -> None:
    ours, theirs = twins(reference, shape, seed)
    assert list(ours.target_layer_ids) == theirs.target_layer_ids
    size = ours.config.hidden_size
    inputs = {
        "position_ids": torch.arange(context + ours.block_size).expand(rows, -1),
        "noise_embedding": torch.randn(rows, ours.block_size, size),
        "target_hidden": torch.randn(rows, context, len(ours.target_layer_ids) * size),
    }
    torch.testing.assert_close(ours(**inputs), theirs(**inputs), atol=1e-5, rtol=1e-5)


@quick
@given(
    shape=shapes(),
    chunks=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_decode_cycles_with_cache(
    reference: ModuleType, shape: dict[str, Any], chunks: list[int], seed: int
) -> None:
    """Append the newly committed context, draft a block, drop it; several times."""
    ours, theirs = twins(reference, shape, seed)
    our_cache, their_cache = new_cache(), reference._make_cache(theirs.config)
    committed, size = 0, ours.config.hidden_size
    for chunk in chunks:
        inputs = {
            "position_ids": torch.arange(committed, committed + chunk + ours.block_size)[None],
            "noise_embedding": torch.randn(1, ours.block_size, size),
            "target_hidden": torch.randn(1, chunk, len(ours.target_layer_ids) * size),
            "use_cache": True,
        }
        our_hidden = ours(past_key_values=our_cache, **inputs)
        their_hidden = theirs(past_key_values=their_cache, **inputs)
        torch.testing.assert_close(our_hidden, their_hidden, atol=1e-5, rtol=1e-5)
        committed += chunk
        crop_to(our_cache, committed)
        reference._crop_to(their_cache, committed)
        for mine, other in zip(our_cache.layers, their_cache.layers, strict=True):
            assert mine.keys.shape == other.keys.shape
            torch.testing.assert_close(mine.keys, other.keys, atol=1e-5, rtol=1e-5)


SHAPE = {
    "num_layers": 2,
    "block_size": 4,
    "taps": 5,
    "num_hidden_layers": 20,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "attention_bias": False,
    "rope_theta": 1e5,
}


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_checkpoints_go_both_ways(reference: ModuleType, tmp_path: Path, writer: str) -> None:
    ours, theirs = twins(reference, SHAPE, seed=0)
    source, reader = {
        "ours": (ours, reference.DFlashDraftModel),
        "theirs": (theirs, DFlashDraftModel),
    }[writer]
    source.save_pretrained(tmp_path)
    loaded = reader.from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == source.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name]), name
    assert loaded.block_size == 4
    assert loaded.mask_token_id == MASK_TOKEN
    assert list(loaded.target_layer_ids) == list(ours.target_layer_ids)


def test_a_config_of_the_first_public_layout(reference: ModuleType) -> None:
    """No tapped layers named: as many as draft layers, spread over the target."""
    config = Qwen3Config(
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_hidden_layers=3,
        vocab_size=32,
        num_target_layers=36,
        block_size=8,
    )
    ours, theirs = DFlashDraftModel(config), reference.DFlashDraftModel(config)
    assert list(ours.target_layer_ids) == theirs.target_layer_ids == [1, 17, 33]
    assert ours.block_size == theirs.block_size == 8
    assert ours.mask_token_id is theirs.mask_token_id is None
