"""What a test wants to happen in a process of its own: ``python child.py VERB DIRECTORY``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import torch

from dflash.data.rollouts import Rollout
from dflash.target import Target
from dflash.training.config import TrainConfig
from dflash.training.module import DrafterTraining
from tests.training.steps import run_steps, training
from tests.training.toys import SHAPES, answers, recipe, toy, train

SHARED_OUT = {"steps": 2, "sequences": 5, "micro_batch": 1, "clip": 1e9}


def material() -> tuple[Target, list[Rollout]]:
    """The same in every process."""
    target = toy(tied=False)
    return target, answers(target, SHAPES)


def resumable(**given: object) -> TrainConfig:
    """Resume points after steps 3, 6 and 9 of 10."""
    return recipe(steps=10, sequences=3, checkpoint_every=3, **given)


def share_out(directory: Path) -> None:
    """Two processes take five sequences, three and two of them; then one process takes all.

    In this order: a process that has run a backward pass cannot be forked.
    """
    target, rollouts = material()
    for devices, strategy in ((2, "ddp_fork"), (1, "auto")):
        config = recipe(devices=devices, strategy=strategy, **SHARED_OUT)
        path = directory / f"{devices}.pt"
        run_steps(training(target, rollouts, config), target, rollouts, directory / strategy, path)


def share_run(directory: Path) -> None:
    """A whole run in two processes."""
    target, rollouts = material()
    result = train(directory, target, rollouts, resumable(devices=2, strategy="ddp_fork"))
    torch.save(vars(result) | {"path": str(result.path)}, directory / "result.pt")


def die(directory: Path) -> None:
    """Train until SIGKILL ends this process in the middle of step 8."""
    step = DrafterTraining.training_step

    def mortal(self, batch, batch_idx):
        if self.global_step == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, batch, batch_idx)

    DrafterTraining.training_step = mortal
    target, rollouts = material()
    train(directory, target, rollouts, resumable())


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    verbs = {"share_out": share_out, "share_run": share_run, "die": die}
    for verb in sys.argv[1].split(","):
        verbs[verb](Path(sys.argv[2]))
