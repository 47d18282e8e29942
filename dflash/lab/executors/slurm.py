"""Every cell a Slurm job, by submitit. The store must be on a file system that the nodes share."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from dflash.lab.executors.config import ExecutorConfig
from dflash.lab.executors.job import Job, Result, perform
from dflash.lab.executors.slots import at_most_here
from dflash.lab.executors.window import run_in_window
from dflash.lab.executors.worker import quiet_lab
from dflash.lab.stages.common import Lab
from dflash.lab.stages.nodes import CALLS, ENDED, answer_calls
from dflash.model.errors import UserError

try:
    import submitit
except ModuleNotFoundError:
    allowed = "local, ray, or install submitit: pip install 'dflash-lab[slurm]'"
    raise UserError.of("executor.kind", "slurm", allowed) from None

POLL = 1.0  # seconds between looks for results; submitit asks sacct less and less often


@dataclasses.dataclass(frozen=True)
class Work:
    """A job as a node gets it. What a time limit interrupts is requeued and goes on."""

    store: Path
    job: Job
    threads: int

    def __call__(self) -> dict[str, Any]:
        """Do it; plain data of a ``Result``. Nodes after the first only lend their devices."""
        torch.set_num_threads(at_most_here(self.threads))
        if self.job.nodes == 1:
            return self.perform().plain()
        part = "-".join(
            os.environ.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "RESTART_COUNT")
        )
        calls = self.store / "slurm" / f"calls-{part}"
        node = int(os.environ["SLURM_PROCID"])
        if node:
            answer_calls(calls, node)
            return Result({}).plain()
        calls.mkdir(parents=True, exist_ok=True)
        os.environ[CALLS] = str(calls)
        try:
            return self.perform().plain()
        finally:
            del os.environ[CALLS]
            (calls / ENDED).touch()

    def perform(self) -> Result:
        """The job itself."""
        return perform(quiet_lab(self.store), self.job)

    def checkpoint(self) -> Any:
        """Called by submitit shortly before the time is over."""
        return submitit.helpers.DelayedSubmission(self)


class Slurm:
    """The executor of a Slurm cluster; logs are in ``<store>/slurm``.

    Raises:
        UserError: there is no Slurm here, or options that it does not have.
    """

    def __init__(self, lab: Lab, config: ExecutorConfig) -> None:
        self.lab, self.config = lab, config
        self.store = lab.store.root.absolute()
        slurm = config.slurm
        try:
            self._executor = submitit.AutoExecutor(
                self.store / "slurm" / "%j",
                cluster=slurm.cluster,
                slurm_max_num_timeout=config.retries,
            )
            self._executor.update_parameters(
                name="dflash",
                timeout_min=slurm.time,
                cpus_per_task=slurm.cpus,
                mem_gb=slurm.memory,
                slurm_additional_parameters=slurm.extra,
                **({"gpus_per_node": slurm.gpus} if slurm.gpus else {}),
                **({"slurm_partition": slurm.partition} if slurm.partition else {}),
            )
        except RuntimeError as error:
            raise UserError.of(
                "executor.kind", "slurm", f"a machine with Slurm ({error})"
            ) from None

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result]]:
        """Results as they come; lost jobs are submitted again."""
        for job in jobs:
            if job.devices > max(1, self.config.slurm.gpus):
                raise UserError.of("executor.slurm.gpus", self.config.slurm.gpus, f"{job.devices}")
            if job.nodes > 1 and self.config.slurm.cluster == "local":
                raise UserError.of("train.nodes", job.nodes, "1 with executor.slurm.cluster=local")
        limit = self.config.workers
        if limit is None and self.config.slurm.cluster == "local":
            limit = 1  # nobody else keeps this machine from being overrun
        return run_in_window(self.lab, self, jobs, limit, self.config.retries)

    def submit(self, job: Job) -> submitit.Job[dict[str, Any]]:
        """Put a job in Slurm's queue."""
        if self.config.slurm.cluster == "slurm":
            together = ["--kill-on-bad-exit=1"] if job.nodes > 1 else []
            self._executor.update_parameters(
                nodes=job.nodes, tasks_per_node=1, slurm_srun_args=together
            )
        submitted = self._executor.submit(Work(self.store, job, self.config.slurm.cpus))
        self.lab.say(f"{job.label}: job {submitted.job_id}, log {submitted.paths.stdout}")
        return submitted

    def wait(self, handles: Sequence[submitit.Job[Any]]) -> submitit.Job[Any]:
        """Look until one has ended."""
        while True:
            for handle in handles:
                if handle.done():
                    return handle
            time.sleep(POLL)

    def result(self, handle: submitit.Job[dict[str, Any]]) -> Result | str:
        """What a job left, or the state in which it ended without a result."""
        try:
            return Result(**handle.results()[0])  # the first node's
        except (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError):
            return f"job {handle.job_id}, {handle.state}, log {handle.paths.stderr}"

    def cancel(self, handle: submitit.Job[Any]) -> None:
        """Take a job out of the queue."""
        handle.cancel(check=False)
