"""A copy of the shipped experiments with a target that needs nothing installed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import yaml

from dflash.lab.stages.common import Lab
from dflash.lab.store import Store

SPEC = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tiny)  # tests are no package, so a helper is loaded by path

SHIPPED = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture
def experiments(tmp_path, monkeypatch) -> Path:
    """The shipped experiments, in a place where a test may add its own."""
    directory = tmp_path / "experiments"
    shutil.copytree(SHIPPED, directory)
    monkeypatch.setenv("DFLASH_EXPERIMENTS", str(directory))
    return directory


@pytest.fixture
def write_experiment(experiments):
    """Write ``ablation/<name>.yaml`` with the fields a test cares about."""

    def write(arms: str, name: str = "mine", extra: str = "") -> str:
        text = f"question: q?\nhypothesis: h\npaper: p\n{extra}arms:\n{arms}\n"
        (experiments / "ablation" / f"{name}.yaml").write_text(text)
        return name

    return write


SMALL = [
    "target=tiny",
    "drafter.num_layers=1",
    "drafter.block_size=4",
    "drafter.features.taps=[1,3]",
    "drafter.vocab=full",
    "data.train={gsm_symbolic: 0, docstrings: 0, written: 12}",
    "data.eval={gsm8k: 0, humaneval: 0, mt_bench: 0, vicuna: 3}",
    "data.train_new_tokens=24",
    "data.eval_new_tokens=16",
    "data.temperature=1.0",
    "train.steps=2",
    "train.sequences=2",
    "train.anchors_per_sequence=3",
    "train.precision=32-true",
    "train.max_length=4096",
    "decode.prompts_per_bench=1",
    "decode.new_tokens=8",
    "seeds=[0,1]",
]


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory) -> Path:
    return tiny.save_tiny_target(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def deep_target(tmp_path_factory) -> Path:
    """Deep enough for five taps in its first third."""
    return tiny.save_tiny_target(tmp_path_factory.mktemp("deep"), layers=15)


@pytest.fixture
def small_overrides() -> list[str]:
    """A run of seconds on the tiny target."""
    return list(SMALL)


@pytest.fixture
def small(experiments, tiny_target, write_experiment):
    """The name of an experiment with two arms; the tiny target is one of the targets."""
    target = {
        "name": "tiny",
        "source": str(tiny_target),
        "mask_token_id": tiny.MASK,
        "device": "cpu",
    }
    (experiments / "target" / "tiny.yaml").write_text(yaml.safe_dump(target))
    arms = "  bare: {drafter.attention.qk_norm: none}\n  leaky: {drafter.attention.leak: 1}"
    return write_experiment(arms)


@pytest.fixture
def lab(tmp_path) -> Lab:
    """A lab that keeps what it says in ``lab.said``."""
    said: list[str] = []
    lab = Lab(Store(tmp_path / "store"), said.append, progress=False)
    lab.said = said  # type: ignore[attr-defined]
    return lab
