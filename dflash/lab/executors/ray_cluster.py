"""Every cell a Ray task. The store must be on a file system that the nodes share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from dflash.lab.errors import one_line
from dflash.lab.executors.config import ExecutorConfig
from dflash.lab.executors.job import Job, Result, perform
from dflash.lab.executors.slots import at_most_here
from dflash.lab.executors.window import run_in_window
from dflash.lab.executors.worker import quiet_lab
from dflash.lab.stages.common import Lab
from dflash.model.errors import UserError

try:
    import ray
except ModuleNotFoundError:
    allowed = "local, slurm, or install Ray: pip install 'dflash-lab[ray]'"
    raise UserError.of("executor.kind", "ray", allowed) from None


LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
)


@ray.remote
def remote(store: str, directory: str, threads: int, job: dict[str, Any]) -> dict[str, Any]:
    """Do a job on a node, in the directory of the command; plain data of a ``Result``."""
    os.chdir(directory)
    torch.set_num_threads(at_most_here(threads))
    return perform(quiet_lab(Path(store)), Job(**job)).plain()


class RayCluster:
    """The executor of the cluster at ``RAY_ADDRESS``, else of one that is started here.

    Raises:
        UserError: nothing answers at ``RAY_ADDRESS``.
    """

    def __init__(self, lab: Lab, config: ExecutorConfig) -> None:
        self.lab, self.config = lab, config
        if not ray.is_initialized():
            start()
        self.has_gpus = ray.cluster_resources().get("GPU", 0) > 0

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result]]:
        """Results as they come; Ray itself starts the tasks of lost workers again."""
        return run_in_window(self.lab, self, jobs, self.config.workers, retries=0)

    def submit(self, job: Job) -> ray.ObjectRef:
        """Queue one task."""
        asked = self.config.ray.gpus
        gpus = job.devices if asked is None and self.has_gpus else asked or 0
        task = remote.options(
            name=job.label,
            num_cpus=self.config.ray.cpus,
            num_gpus=gpus,
            max_retries=self.config.retries,
        )
        store, threads = str(self.lab.store.root.absolute()), self.config.ray.cpus
        return task.remote(store, os.getcwd(), threads, dataclasses.asdict(job))

    def wait(self, handles: Sequence[ray.ObjectRef]) -> ray.ObjectRef:
        """The first that has ended."""
        ready, _ = ray.wait(list(handles), num_returns=1)
        return ready[0]

    def result(self, handle: ray.ObjectRef) -> Result | str:
        """What a task left, or how its last worker was lost."""
        try:
            return Result(**ray.get(handle))
        except LOST as error:
            return one_line(error)
        except ray.exceptions.RayTaskError as error:  # it would fail on every worker
            return Result(None, one_line(error.cause))

    def cancel(self, handle: ray.ObjectRef) -> None:
        """End a task and its worker."""
        ray.cancel(handle, force=True)


def start() -> None:
    """Connect to ``RAY_ADDRESS``, or start a cluster on this machine for this process alone."""
    address = os.environ.get("RAY_ADDRESS")
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", include_dashboard=False)
        return
    try:
        ray.init(address=address)
    except ConnectionError as error:
        raise UserError.of("RAY_ADDRESS", address, f"a running cluster ({error})") from None
