"""Where and how cells run; nothing here changes what they compute.

So it is in no key itself. Keys of what is timed name the device that this leads to, with the number
of threads of a processor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict

from dflash.model.errors import UserError

# Options of sbatch that have fields of their own, and those that would start a cell several times.
SET_BY_FIELDS = ("partition", "time", "mem", "cpus-per-task", "gpus-per-node")
SEVERAL_TASKS = ("nodes", "ntasks", "ntasks-per-node", "array")


@dataclass(frozen=True)
class RayConfig:
    """What one cell takes of a Ray cluster.

    Attributes:
        gpus: ``None`` means ``train.devices`` where the cluster has GPUs, else none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    gpus: int | None = None
    cpus: int = 1


@dataclass(frozen=True)
class SlurmConfig:
    """What one cell's job asks Slurm for.

    Attributes:
        cluster: ``local`` runs submitit's jobs on this machine, to try them out.
        time: minutes; a job that runs out of them is requeued and goes on.
        memory: GB.
        extra: any other option of sbatch, for example ``account`` or ``constraint``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    cluster: Literal["slurm", "local"] = "slurm"
    partition: str | None = None
    time: int = 240
    gpus: int = 1
    cpus: int = 8
    memory: int = 64
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.extra:
            if name.replace("_", "-") in SET_BY_FIELDS + SEVERAL_TASKS:
                allowed = "an option that the lab does not set; train.nodes sets the nodes"
                raise UserError.of("executor.slurm.extra", name, allowed)


@dataclass(frozen=True)
class ExecutorConfig:
    """One way to run the cells of an experiment.

    Attributes:
        workers: cells at a time. ``None``: on ``local`` one per visible GPU, or in turn in this
            process on a CPU; elsewhere as many as the cluster takes.
        retries: how often the cell of a lost worker is started again.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["local", "ray", "slurm"] = "local"
    workers: int | None = None
    retries: int = 2
    ray: RayConfig = field(default_factory=RayConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UserError.of("executor.workers", self.workers, "null or an integer of at least 1")
        at_least = {"ray.cpus": 1, "slurm.time": 1, "slurm.cpus": 1, "slurm.memory": 1}
        for name, least in (at_least | {"retries": 0, "ray.gpus": 0, "slurm.gpus": 0}).items():
            part, _, leaf = name.rpartition(".")
            value = getattr(getattr(self, part) if part else self, leaf)
            if value is not None and value < least:
                raise UserError.of(f"executor.{name}", value, f"an integer of at least {least}")
