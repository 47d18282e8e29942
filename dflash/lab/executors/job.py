"""What executors run: a cell, or what all cells share, as plain data; and what comes back."""

from __future__ import annotations

import dataclasses
import traceback
from dataclasses import dataclass
from typing import Any

from dflash.lab.config import config_from_tree
from dflash.lab.errors import one_line
from dflash.lab.files import is_disk_full
from dflash.lab.pipeline import prepare_shared, run_cell
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info
from dflash.lab.store import StoreError
from dflash.model.errors import UserError


@dataclass(frozen=True)
class Job:
    """One piece of work that another process can do on its own.

    Attributes:
        label: arm and seed in words.
        config: the resolved configuration as plain data.
        seed: None for what the cells share.
        claim: what processes that share an experiment compete for, see ``Store.claim``.
    """

    label: str
    config: dict[str, Any]
    seed: int | None
    claim: str

    @property
    def devices(self) -> int:
        """How many devices its training spans."""
        return int(self.config["train"]["devices"])

    @property
    def nodes(self) -> int:
        """How many machines its training spans; inputs of all cells need one."""
        return 1 if self.shared else int(self.config["train"]["nodes"])

    @property
    def shared(self) -> bool:
        """Inputs of all cells: they come first and have the machine to themselves."""
        return self.seed is None


@dataclass(frozen=True)
class Result:
    """How a job ended.

    Attributes:
        entries: stage -> name of the store entry that tables read; None when it failed.
        error: one line.
        fatal: the store or the disk, so the other jobs would fail as well.
    """

    entries: dict[str, str] | None
    error: str = ""
    fatal: bool = False

    def plain(self) -> dict[str, Any]:
        """For a file or a wire; ``Result(**plain)`` reads it."""
        return dataclasses.asdict(self)


def perform(lab: Lab, job: Job) -> Result:
    """Do one job in this process; an error becomes its result."""
    lab.say(job.label)
    try:
        config = config_from_tree(job.config, recipe="", tier="")
        info = target_info(lab, config.target)
        if job.seed is None:
            prepare_shared(lab, config, info)
            return Result({})
        return Result(run_cell(lab, config, info, job.seed).names())
    except Exception as error:
        fatal = isinstance(error, StoreError) or is_disk_full(error)
        if isinstance(error, UserError) and (fatal or job.shared):
            return Result(None, str(error), fatal=True)
        text = one_line(error)
        lab.say(f"{job.label} failed: {text}\n{traceback.format_exc()}")
        return Result(None, text, fatal)


def lost(how: str, attempts: int) -> Result:
    """The result of a job whose workers all died."""
    return Result(None, f"worker lost {attempts} times, at last: {how}")
