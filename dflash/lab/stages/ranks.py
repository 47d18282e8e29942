"""Several processes that train one drafter: started by the one that holds the store's lock.

Lightning's own launcher would start the whole command once more for every device, and those would
wait for each other at the lock. So torchrun starts ``rank.py``, which trains and nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dflash.lab.config import LabConfig
from dflash.lab.stages.common import write_json
from dflash.lab.stages.nodes import call_nodes, run_agent
from dflash.model.errors import UserError
from dflash.target.load import device_of
from dflash.training.config import TrainConfig

if TYPE_CHECKING:
    from dflash.lab.stages.train import Training

# Both begin with a dot, so that the entry does not keep them.
WORK, ERROR = ".rank.json", ".error.txt"
STRATEGIES = ("auto", "ddp", "fsdp")


class RankError(RuntimeError):
    """A rank failed; its own error in one line."""


def check_ranks(config: LabConfig) -> None:
    """Refuse what several processes cannot do, on any machine.

    Raises:
        UserError: a strategy that does not fit, or a certain device for all of them.
    """
    ranks, strategy = config.train.ranks, config.train.strategy
    if ranks == 1:
        return
    if strategy not in STRATEGIES:
        raise UserError.of("train.strategy", strategy, ", ".join(STRATEGIES))
    if strategy == "fsdp" and config.train.sequences % ranks:
        allowed = f"a multiple of the {ranks} devices with train.strategy=fsdp"
        raise UserError.of("train.sequences", config.train.sequences, allowed)
    if config.target.device not in ("auto", "cuda", "cpu"):
        allowed = "auto, cuda or cpu, which mean a device for every rank"
        raise UserError.of("target.device", config.target.device, allowed)


def check_devices_here(config: LabConfig) -> None:
    """Refuse more ranks than this machine has GPUs for.

    Raises:
        UserError: see above.
    """
    devices = config.train.devices
    if devices > 1 and device_of(config.target.device).type == "cuda":
        present = torch.cuda.device_count()
        if devices > present:
            raise UserError.of("train.devices", devices, f"at most {present} (GPUs here)")


def launch_ranks(training: Training, directory: Path) -> None:
    """Train in ``train.ranks`` processes; the first leaves the results in ``directory``.

    Raises:
        UserError: see ``check_ranks`` and ``check_devices_here``.
        RankError: what the first rank that failed said.
    """
    lab, config, features = training.lab, training.config, training.features
    check_ranks(config)
    check_devices_here(config)
    lab.unload()  # the ranks need the memory
    work = {
        "store": str(lab.store.root.absolute()),
        "config": config.tree(),
        "seed": training.seed,
        "identity": training.identity,
        "answers": training.answers.entry.name,
        "features": None if features is None else features.entry.name,
        "directory": str(directory.absolute()),
        "progress": lab.progress,
    }
    write_json(directory / WORK, work)
    (directory / ERROR).unlink(missing_ok=True)
    code = run_agent(_command(config.train, directory / WORK), config.train.devices)
    if code:
        error = directory / ERROR
        told = error.read_text(encoding="utf-8").strip() if error.is_file() else ""
        raise RankError(told or f"torchrun ended with status {code}")


def _command(config: TrainConfig, work: Path) -> list[str]:
    """torchrun's command, after the other nodes were called, if there are any."""
    if config.nodes > 1:
        return call_nodes(config, work)
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={config.devices}"]
    return [sys.executable, "-m", *launcher, "-m", "dflash.lab.stages.rank", str(work)]
