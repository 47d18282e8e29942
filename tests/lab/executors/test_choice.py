"""Which executor a machine gets, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dflash.lab.config import compose_config
from dflash.lab.executors import choice
from dflash.lab.executors.choice import check_match, choose_executor
from dflash.lab.executors.in_turn import InTurn
from dflash.lab.executors.processes import Processes
from dflash.lab.experiment import load_experiment
from dflash.model.errors import UserError
from tests.lab.conftest import SMALL


@pytest.fixture
def choose(lab, small_overrides, monkeypatch):
    """The executor on a machine with so many GPUs."""

    def choose(gpus: int, *overrides: str):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(choice, "device_of", lambda name: torch.device("cuda"))
        return choose_executor(lab, compose_config([*small_overrides, *overrides]))

    return choose


def test_every_gpu_gets_a_worker(choose, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    executor = choose(3, "target.device=auto")
    assert isinstance(executor, Processes)
    assert executor.devices == ["0", "1", "2"]
    assert isinstance(choose(1, "target.device=auto"), InTurn)
    assert isinstance(choose(3, "target.device=cuda:1", "executor.workers=1"), InTurn)


@pytest.mark.parametrize(("gpus", "device"), [(1, "auto"), (1, "cuda"), (3, "cuda:0")])
def test_cells_do_not_share_a_gpu(choose, gpus, device):
    with pytest.raises(UserError, match=r"executor\.workers=2 .* at most 1 on one GPU"):
        choose(gpus, f"target.device={device}", "executor.workers=2")


@pytest.mark.parametrize(
    "override", ["executor.kind=slurm", "executor.workers=2", "train.devices=2"]
)
def test_seconds_are_matched_only_where_cells_run(override):
    twelve = load_experiment("twelve", SMALL)
    check_match(replace(load_experiment("twelve", [*SMALL, override]), match="tokens"))
    check_match(replace(twelve, match="wall_time"))
    elsewhere = replace(load_experiment("twelve", [*SMALL, override]), match="wall_time")
    with pytest.raises(UserError, match="match='wall_time' is not valid; allowed: executor"):
        check_match(elsewhere)
