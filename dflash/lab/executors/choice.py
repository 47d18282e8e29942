"""The executor that a configuration asks for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

import torch

from dflash.lab.config import LabConfig
from dflash.lab.executors.in_turn import InTurn
from dflash.lab.executors.job import Job, Result
from dflash.lab.executors.processes import Processes
from dflash.lab.executors.slots import cores_here, divide, gpus_here
from dflash.lab.experiment import Experiment
from dflash.lab.stages.common import Lab
from dflash.model.errors import UserError
from dflash.target.load import device_of


class Executor(Protocol):
    """Runs jobs, some at a time."""

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result]]:
        """Every job with its result, in the order in which they end."""


def choose_executor(lab: Lab, config: LabConfig) -> Executor:
    """``executor.kind``, as this machine allows it.

    Raises:
        UserError: a package that is not installed, or more workers than the machine has devices.
    """
    if config.executor.kind == "ray":
        from dflash.lab.executors.ray_cluster import RayCluster

        return RayCluster(lab, config.executor)
    if config.executor.kind == "slurm":
        from dflash.lab.executors.slurm import Slurm

        return Slurm(lab, config.executor)
    return _local(lab, config)


def check_match(experiment: Experiment) -> None:
    """Refuse to match arms by seconds that are measured where their cells do not run.

    Raises:
        UserError: ``match: wall_time`` with cells in other processes or on several devices.
    """
    if experiment.match != "wall_time":
        return
    executor = experiment.config.executor
    elsewhere = executor.kind != "local" or executor.workers not in (None, 1)
    if elsewhere or any(arm.config.train.ranks > 1 for arm in experiment.arms):
        allowed = "executor.kind=local, executor.workers=1 and train.devices=1 with it: "
        raise UserError.of("match", "wall_time", f"{allowed}the pace is measured in this process")


def _local(lab: Lab, config: LabConfig) -> Executor:
    workers, retries = config.executor.workers, config.executor.retries
    device = config.target.device
    if device_of(device).type == "cuda":
        certain = device not in ("auto", "cuda")
        devices = gpus_here(torch.cuda.device_count())
        if len(devices) > 1 and not certain:
            return Processes(lab, devices, workers, retries)
        if workers not in (None, 1):  # cells on one GPU would slow each other and be timed so
            raise UserError.of("executor.workers", workers, "at most 1 on one GPU")
    if workers is None or workers == 1:
        return InTurn(lab)
    divide(cores_here(), [], workers)  # refuses what this machine has not
    return Processes(lab, [], workers, retries)
