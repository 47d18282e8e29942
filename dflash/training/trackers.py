"""Experiment trackers: where the loss and the learning rate of every step go while a run trains.

One word of the configuration chooses (``train.logger``). A run is called by its store entry, which
is in the column ``entry`` of the results; those stay the source of truth. A run that resumes goes
on in the same tracker's run:

    csv          a new file for every part; where parts overlap, the later one counts
    tensorboard  the same folder; steps after the resume point are purged, readers then hide them
    wandb        the same id; steps that the server has are not taken twice. Offline, every part is
                 a folder of its own, ``log-<n>/wandb``, and the server joins them in ``wandb sync``
    mlflow       the same run; steps that it has are not logged again

csv, tensorboard and wandb write into the run's directory; mlflow wants MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches
from dflash.training.config import IRRELEVANT, TrainConfig

if TYPE_CHECKING:  # Lightning takes seconds to import, and plans are checked without it
    from lightning.pytorch.loggers import Logger

PROJECT = "dflash-lab"
MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
MLFLOW_URI = "MLFLOW_TRACKING_URI"


def check_tracker(name: str) -> None:
    """Can runs be logged there?

    Raises:
        UserError: its package is not installed, or it does not know where to write.
    """
    module = MODULES.get(name)
    if module is not None and find_spec(module) is None:
        raise UserError.of("train.logger", name, "an installed tracker: pip install '.[trackers]'")
    if name == "mlflow":
        _mlflow_client()


def build_tracker(name: str, directory: Path, resumed_step: int) -> Logger:
    """The Lightning logger of one run.

    Args:
        directory: of the run; its name without suffix names the run.
        resumed_step: the first step that will be logged; 0 for a new run.
    """
    return TRACKERS[name](directory, resumed_step)


def log_parameters(
    tracker: Logger, config: TrainConfig, switches: DrafterSwitches, seed: int, steps: int
) -> None:
    """Tell the tracker what is trained, in the names of the command line."""
    train = {name: value for name, value in asdict(config).items() if name not in IRRELEVANT}
    tree = {"drafter": asdict(switches), "train": train, "seed": seed, "steps": steps}
    tracker.log_hyperparams(_dotted(tree))


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        inner = isinstance(value, Mapping) and value
        flat |= _dotted(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def _csv(directory: Path, resumed_step: int) -> Logger:
    """A folder ``log-<n>`` for every part of a run: Lightning deletes what is there."""
    from lightning.pytorch.loggers import CSVLogger

    del resumed_step
    version = _next_part(directory).name
    return CSVLogger(directory, name="", version=version, flush_logs_every_n_steps=1)


def _next_part(directory: Path) -> Path:
    """A new folder for every part of a run."""
    return directory / f"log-{len(list(directory.glob('log-*')))}"


def _tensorboard(directory: Path, resumed_step: int) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    class Flushing(TensorBoardLogger):
        """Writes out what a resume point covers: after a kill, those steps are not done again."""

        def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
            self.experiment.flush()

    return Flushing(directory, name="", version="log", purge_step=resumed_step)


def _wandb(directory: Path, resumed_step: int) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    class Stepwise(WandbLogger):
        """Gives W&B the step itself, so that it drops those it has; ends with its drafter.

        Drafters may train in turns in one process, so a run begins beside those in progress.
        """

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            self.experiment.log(dict(metrics), step=step)

        def finalize(self, status: str) -> None:
            super().finalize(status)
            if self._experiment is not None:
                self._experiment.finish(exit_code=0 if status == "success" else 1)

    del resumed_step
    run = directory.stem
    return Stepwise(
        save_dir=_next_part(directory),  # W&B's own names repeat within a second
        project=PROJECT,
        name=run,
        id=run,
        resume="allow",
        reinit="create_new",
    )


def _mlflow(directory: Path, resumed_step: int) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    del resumed_step
    client = _mlflow_client()
    experiment = client.get_experiment_by_name(PROJECT)
    found = []
    if experiment is not None:
        named = f"attributes.run_name = '{directory.stem}'"
        found = client.search_runs([experiment.experiment_id], named, max_results=1)
    run = found[0].info.run_id if found else None
    logged = {metric.step for metric in client.get_metric_history(run, "loss")} if run else set()

    class Once(MLFlowLogger):
        """MLflow keeps every value of a step, so a step is given to it once."""

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            if step not in logged:
                super().log_metrics(metrics, step)

    return Once(PROJECT, directory.stem, os.environ[MLFLOW_URI], run_id=run)


def _mlflow_client() -> Any:
    """A client of ``$MLFLOW_TRACKING_URI``.

    Raises:
        UserError: it is not set, or this installation of MLflow cannot use it.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    uri = os.environ.get(MLFLOW_URI)
    if not uri:
        raise UserError.of(
            MLFLOW_URI, uri, "the address of a tracking server for train.logger=mlflow"
        )
    try:
        return MlflowClient(uri)
    except MlflowException as error:
        raise UserError(f"{MLFLOW_URI}={uri!r}: {' '.join(str(error).split())}") from None


TRACKERS: dict[str, Callable[[Path, int], Any]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
