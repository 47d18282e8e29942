"""Generation agrees with the reference implementation's wheel, loaded by path."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dflash.decoding import dflash_generate
from tests.decoding.toys import MASK, toy_drafter, toy_prompt, toy_target

NEW = 30


@pytest.fixture(scope="module")
def reference(reference_dir: Path) -> Iterator[ModuleType]:
    """The wheel's ``model.py`` under a name of its own: its package is called like ours."""
    spec = importlib.util.spec_from_file_location(
        "reference_dflash_model", reference_dir / "dflash" / "model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module._cuda_time = time.perf_counter  # its clock insists on a GPU
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("family", "tied", "layers", "block", "length"),
    [
        ("llama", True, 1, 2, 1),
        ("llama", False, 2, 5, 7),
        ("qwen3", True, 3, 8, 12),
        ("qwen3", False, 2, 16, 3),
        ("qwen3", True, 8, 4, 20),
    ],
)
def test_generation_equals_the_reference(reference, family, tied, layers, block, length):
    target = toy_target(family, tied, seed=block)
    ours = toy_drafter(target, seed=layers, num_layers=layers, block_size=block)
    theirs = reference.DFlashDraftModel(ours.config).eval()
    theirs.load_state_dict(ours.state_dict())
    prompt = toy_prompt(length, seed=layers)
    stop = [MASK - 1] if layers == 2 else []
    result = dflash_generate(ours, target, prompt, NEW, stop, return_stats=True)
    expected = reference.dflash_generate(
        theirs, target, prompt, NEW, stop or None, return_stats=True
    )
    assert torch.equal(result.output_ids, expected.output_ids)
    # The reference drafts a shorter block where the trained one would pass the length limit.
    whole = [s.emitted for s in result.steps if s.anchor + block <= length + NEW]
    assert whole == expected.acceptance_lengths[: len(whole)]
    assert sum(result.acceptance_lengths) == sum(expected.acceptance_lengths)
