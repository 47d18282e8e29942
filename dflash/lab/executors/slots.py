"""How one machine is divided among worker processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash.lab.executors.config import ExecutorConfig
from dflash.model.errors import UserError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slot:
    """One worker's share.

    Attributes:
        threads: of arithmetic.
        devices: names of GPUs as in ``CUDA_VISIBLE_DEVICES``; empty on a CPU.
    """

    threads: int
    devices: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """Variables of a process that keeps to its share, and to no more threads than this one."""
        threads = dict.fromkeys(THREADS, str(at_most_here(self.threads)))
        return threads | ({DEVICES: ",".join(self.devices)} if self.devices else {})


def divide(cores: int, devices: Sequence[str], workers: int | None, per_job: int = 1) -> list[Slot]:
    """Equal shares; together never more than there is.

    Args:
        cores: of the machine, as far as this process may use them.
        devices: names of the GPUs; empty on a CPU.
        workers: how many shares; None for one per ``per_job`` GPUs, or one on a CPU.
        per_job: devices that one job's training spans.

    Raises:
        UserError: more workers or devices than the machine has.
    """
    units = len(devices) or cores
    what = "GPUs" if devices else "cores"
    if per_job > units:
        raise UserError.of("train.devices", per_job, f"at most {units} ({what} here)")
    most = units // per_job
    if workers is not None and workers > most:
        raise UserError.of("executor.workers", workers, f"at most {most} ({units} {what} here)")
    count = workers or (most if devices else 1)
    threads = max(1, cores // count)
    shares = [tuple(devices[i * per_job : (i + 1) * per_job]) for i in range(count)]
    return [Slot(threads, share) for share in shares]


def cell_threads(executor: ExecutorConfig) -> int | None:
    """Threads of the processes that run cells on a processor; None for this process itself.

    They are part of the device's name, and so of the keys of what is timed there.

    Raises:
        UserError: more workers than the machine has cores.
    """
    if executor.kind == "ray":
        return at_most_here(executor.ray.cpus)
    if executor.kind == "slurm":
        return at_most_here(executor.slurm.cpus)
    if executor.workers in (None, 1):
        return None
    return at_most_here(divide(cores_here(), [], executor.workers)[0].threads)


def at_most_here(threads: int) -> int:
    """A share of threads, fewer where this process has fewer: the user set OMP_NUM_THREADS."""
    return min(threads, torch.get_num_threads())


def cores_here() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def gpus_here(count: int) -> list[str]:
    """Names of the visible GPUs, of which torch sees ``count``."""
    given = os.environ.get(DEVICES)
    names = [name.strip() for name in given.split(",")] if given else map(str, range(count))
    return list(names)[:count]
