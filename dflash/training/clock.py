"""What a run has cost so far, across resumes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from dflash.training.lockstep import Pace


class TrainClock(Callback):
    """Counts seconds, supervised slots and the last loss across resumes.

    The counts are left in a file, since the trainer may have worked in other processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds, self.tokens, self.final_loss = 0.0, 0, float("nan")
        self._since = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now
        self.tokens += int(trainer.callback_metrics["supervised"])
        self.final_loss = float(trainer.callback_metrics["loss"])

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self.path.write_text(json.dumps(self.state_dict()))

    def uncounted(self, pace: Pace) -> Pace:
        """``pace`` with the clock held while it waits for others."""

        def held(step: int) -> None:
            start = time.perf_counter()
            pace(step)
            self._since += time.perf_counter() - start

        return held

    def state_dict(self) -> dict[str, Any]:
        return {
            "train_seconds": self.seconds,
            "tokens": self.tokens,
            "final_loss": self.final_loss,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds = state_dict["train_seconds"]
        self.tokens = state_dict["tokens"]
        self.final_loss = state_dict["final_loss"]
