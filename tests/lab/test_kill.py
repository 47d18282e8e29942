"""``kill -9`` of the whole command in every stage, then the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.load import load
from dflash.cli import main

TIMES = ("train_seconds", "ar_seconds", "spec_seconds", "t_draft", "t_verify", "t_host")
# What is in the store when the process is killed, in the order in which it appears.
MOMENTS = [
    "rollouts-*.partial/turn*",
    "features-*.partial/*",
    "train-*.partial/*.ckpt",
    "decode-*.partial",
]


@pytest.fixture
def command(small, small_overrides, tmp_path):
    """The arguments of an ablation whose store and results are in ``<tmp_path>/<name>``."""
    changed = {"seeds": "[0]", "train.steps": "12", "train.checkpoint_every": "2"}
    values = dict(item.split("=", 1) for item in small_overrides) | changed

    def arguments(name: str) -> list[str]:
        places = ["--store", str(tmp_path / name / "store"), "--results", str(tmp_path / name)]
        return ["ablate", small, *(f"{key}={value}" for key, value in values.items()), *places]

    return arguments


def wait_for(process: subprocess.Popen, store: Path, pattern: str) -> None:
    while not any(store.glob(pattern)):
        assert process.poll() is None, f"the run ended before {pattern} was there"
        time.sleep(0.002)


def tables(directory: Path) -> list[str]:
    result = load("mine", directory)
    frames = (result.runs, result.prompts, result.steps, result.survival)
    return [frame.drop(columns=[*TIMES], errors="ignore").to_csv() for frame in frames]


def test_killed_in_every_stage_the_result_is_that_of_an_uninterrupted_run(command, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "dflash", *command("killed")]
    for moment in MOMENTS:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(program, env=environment, **quiet)
        wait_for(process, tmp_path / "killed" / "store", moment)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    for name in ("killed", "whole"):
        assert main(command(name)) == 0
    assert tables(tmp_path / "killed") == tables(tmp_path / "whole")
