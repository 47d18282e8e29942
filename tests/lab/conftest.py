"""A copy of the shipped experiments with a target that needs nothing installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
