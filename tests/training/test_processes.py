"""Several processes, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.child import SHARED_OUT, material, resumable
from tests.training.toys import assert_same, train, weights

ROOT = Path(__file__).resolve().parents[2]


def child(verbs: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run verbs of ``child.py``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "tests" / "training" / "child.py"), verbs, str(directory)]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run in one process."""
    return train(tmp_path_factory.mktemp("whole"), *material(), resumable())


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("shared")
    done = child("share_run,share_out", directory)
    assert done.returncode == 0, done.stderr[-2000:]
    return directory


def test_two_processes_see_the_loss_and_gradient_of_one(shared):
    one, two = (torch.load(shared / f"{devices}.pt", weights_only=True) for devices in (1, 2))
    assert two[0] == pytest.approx(one[0], rel=1e-5)
    assert two[1] == one[1]
    assert len(one[2]) == SHARED_OUT["steps"]
    for name, gradient in one[2][0].items():
        scale = gradient.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(two[2][0][name], gradient, rtol=1e-4, atol=1e-5 * scale)


def test_a_run_in_two_processes_comes_back_whole(shared, whole):
    result = torch.load(shared / "result.pt", weights_only=True)
    assert result["steps"] == whole.steps
    assert result["tokens"] == whole.tokens
    assert result["parameters"] == whole.parameters
    assert result["final_loss"] == pytest.approx(whole.final_loss, rel=1e-3)
    for kind in ("order_hash", "anchor_hash", "feature_hash", "init"):
        assert result[kind] == getattr(whole, kind)
    assert result["moved"] == pytest.approx(whole.moved, rel=1e-2)


def test_killed_and_resumed_equals_uninterrupted(tmp_path, whole):
    killed = child("die", tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert (tmp_path / "last.ckpt").exists()
    assert not (tmp_path / "drafter").exists()
    resumed = train(tmp_path, *material(), resumable())
    assert_same(weights(resumed), weights(whole))
    assert (resumed.tokens, resumed.final_loss) == (whole.tokens, whole.final_loss)
    assert resumed.moved == whole.moved
