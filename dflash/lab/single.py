"""Work on one drafter outside an experiment: train it, or measure a checkpoint."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from dflash.lab.config import LabConfig
from dflash.lab.executors.config import ExecutorConfig
from dflash.lab.pipeline import check_cell, evaluate_drafter, train_cell
from dflash.lab.results import Row, read_table
from dflash.lab.schema import difference
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import TargetInfo, target_info
from dflash.lab.stages.train import Trained
from dflash.lab.store import Store
from dflash.model.errors import UserError

IDENTITY = ("source", "revision")  # of a target, whatever it is called and runs on


def check_executor(config: LabConfig) -> None:
    """Refuse what work on one drafter makes no use of.

    Raises:
        UserError: ``executor.*`` is set.
    """
    set_here = difference(asdict(ExecutorConfig()), asdict(config.executor))
    for name, (default, value) in set_here.items():
        allowed = f"{default}: one drafter is worked on in this process"
        raise UserError.of(f"executor.{name}", value, allowed)


def train_drafters(lab: Lab, config: LabConfig, output: Path | None) -> Iterator[Path]:
    """Train one drafter per seed (0 when none is given); yields each checkpoint's folder.

    Args:
        output: a folder that does not exist yet, to copy the checkpoint to; one seed only.

    Raises:
        UserError: a configuration that cannot be trained, or an output that exists.
    """
    seeds = config.seeds or (0,)
    if output is not None and (output.exists() or len(seeds) > 1):
        raise UserError.of("--output", str(output), "a folder that does not exist, for one seed")
    info = target_info(lab, config.target)
    check_cell(config, info)
    for seed in seeds:
        checkpoint = train_cell(lab, config, info, seed).checkpoint
        if output is not None:
            shutil.copytree(checkpoint, output)
            checkpoint = output
        yield checkpoint


def evaluate_checkpoint(lab: Lab, config: LabConfig, checkpoint: Path) -> Iterator[str]:
    """Replay and decode with a checkpoint; yields lines of a small table.

    The checkpoint says what the drafter is; ``config.drafter`` is not looked at.

    Raises:
        UserError: no checkpoint there, or one that does not fit the target.
    """
    trained = Trained.of_checkpoint(checkpoint)
    config = dataclasses.replace(config, drafter=trained.switches)
    info = target_info(lab, config.target)
    check_fit(trained, info)
    entries = evaluate_drafter(lab, config, info, trained)
    yield f"{'bench':<16} {'source':<7} prompts      τ  lossless  speed-up"
    for entry in entries:
        if entry is not None:
            yield from _lines(read_table(entry / "prompts.parquet"))


def check_fit(trained: Trained, info: TargetInfo) -> None:
    """A drafter works with the target it was trained for only.

    Raises:
        UserError: sizes differ.
    """
    ours = trained.hf_config
    for field in ("hidden_size", "vocab_size"):
        found, wanted = getattr(ours, field), getattr(info.hf_config, field)
        if found != wanted:
            raise UserError.of(f"drafter {trained.checkpoint}: {field}", found, f"{wanted}")
    layers = getattr(ours, "num_target_layers", info.num_layers)
    if layers != info.num_layers:
        field = f"drafter {trained.checkpoint}: num_target_layers"
        raise UserError.of(field, layers, f"{info.num_layers}")


def latest_drafter(store: Store, config: LabConfig) -> Trained:
    """The drafter trained last for this target, by a version of the lab whose entries we can read.

    Raises:
        UserError: there is none.
    """
    for entry in filter(Trained.readable, reversed(store.entries("train"))):
        trained = Trained.of_entry(entry)
        known = trained.facts["config"]
        honest = known["drafter"]["attention"]["leak"] == 0  # a negative control is of no use
        same = all(known["target"][name] == getattr(config.target, name) for name in IDENTITY)
        if honest and same:
            return trained
    raise UserError(
        f"no drafter for {config.target.name} in {store.root}; train one with "
        f"`dflash train --target {config.target.name}`, or name one with --drafter"
    )


def _lines(rows: list[Row]) -> Iterator[str]:
    for bench in dict.fromkeys(row["bench"] for row in rows):
        part = [row for row in rows if row["bench"] == bench and row["steps"]]
        if not part:
            continue
        tau = sum(row["tau"] for row in part) / len(part)
        checked = [row["lossless"] for row in part if row["lossless"] is not None]
        lossless = f"{sum(checked)}/{len(checked)}" if checked else ""
        seconds = sum(row["spec_seconds"] for row in part)
        speed = f"{sum(row['ar_seconds'] for row in part) / seconds:.2f}" if checked else ""
        source = part[0]["source"]
        yield f"{bench:<16} {source:<7} {len(part):>7} {tau:>6.3f} {lossless:>9} {speed:>9}"
