"""The noise floor of one setting: how far apart two arms lie that do not differ.

`dflash noise` measures it (`analysis.noise`). It is kept beside the experiments, in
`noise/<target>/<setting>/noise.json`, where the report of every later experiment of the same
setting finds it and keeps a copy. A setting is the control's whole configuration and the device: no
floor is lent to another budget.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from analysis.verdict import MIN_PROMPTS, MIN_SEEDS
from dflash.model.errors import UserError
from dflash.target.files import replacing

NAME = "noise.json"


@dataclass(frozen=True)
class Spread:
    """Differences between two arms that should be equal, paired by prompt and seed.

    Attributes:
        per_seed: mean difference of each seed.
        largest: largest absolute value of those.
        difference, low, high: mean over all, with its 95% interval; None where not estimable.
        prompt_sd: standard deviation of the prompts' mean differences; None with one prompt.
        prompts: how many prompts each mean is over.
    """

    per_seed: tuple[float, ...]
    largest: float
    difference: float
    low: float | None
    high: float | None
    prompt_sd: float | None
    prompts: int

    @property
    def enough(self) -> bool:
        """Whether it rests on enough to hold a verdict against it."""
        return len(self.per_seed) >= MIN_SEEDS and self.prompts >= MIN_PROMPTS

    def bound(self, seeds: int) -> float:
        """What the mean over `seeds` of a change without effect stays below in 95 of 100 runs.

        t * rms(per_seed) / sqrt(seeds). The expected difference is 0 by construction, so every seed
        is a degree of freedom of t, and the interval needs no bootstrap over three seeds.
        """
        count = len(self.per_seed)
        rms = math.sqrt(sum(value**2 for value in self.per_seed) / count)
        return float(stats.t.ppf(0.975, count)) * rms / math.sqrt(seeds)


@dataclass(frozen=True)
class Floor:
    """What noise.json holds.

    Attributes:
        setting: see `setting`.
        rerun: per bench, tau of the same cell trained again: 0 where training is deterministic.
        reseeded: per bench, tau of the control from other seeds: what a change without effect can
            look like.
        device: that trained, which τ may depend on.
        clock: log of the ratio of speeds of the same drafter, trained and timed again; None where
            nothing was timed.
        clock_device: that decoded; the clock's floor is of it alone.
    """

    target: str
    setting: str
    recipe: str
    tier: str
    device: str
    dtype: str
    code_version: str
    seeds: int
    prompts: int
    rerun: dict[str, Spread]
    reseeded: dict[str, Spread]
    clock: Spread | None
    clock_device: str

    def bound(self, bench: str, seeds: int) -> float:
        """`Spread.bound` of the reseeded control; NaN where that rests on too little."""
        spread = self.reseeded.get(bench)
        return spread.bound(seeds) if spread is not None and spread.enough and seeds else math.nan


_FLOOR = TypeAdapter(Floor)


def devices(rows: pd.DataFrame) -> str:
    """What the rows of a table name as their device."""
    return "; ".join(sorted(rows["device"].unique()))


def setting(config: Mapping[str, Any], runs: pd.DataFrame) -> str:
    """Names recipe, tier and everything else that a floor is of.

    config: what config.yaml says; runs: its `runs`, for the device.
    """
    fine = runs[(runs["kind"] == "drafter") & (runs["status"] == "ok")]
    text = json.dumps([config["setting"], devices(fine)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{config['recipe']}-{config['tier']}-{digest}"


def place(results: Path, config: Mapping[str, Any], runs: pd.DataFrame) -> Path:
    """Where the floor of an experiment's setting belongs below `results`."""
    return results / "noise" / config["control"]["target"]["name"] / setting(config, runs) / NAME


def find(directory: Path, config: Mapping[str, Any], runs: pd.DataFrame) -> Floor | None:
    """The floor of an experiment: the copy its report kept, else the one at its `place`.

    Raises UserError, in one line, if the file is not one of this version.
    """
    own = read(directory / NAME)
    if own is not None and own.setting == setting(config, runs):
        return own
    return read(place(directory.parent, config, runs))


def keep(directory: Path, config: Mapping[str, Any], runs: pd.DataFrame) -> Floor | None:
    """Copy the newest floor of an experiment beside its tables: its verdicts can be had again from
    that folder alone. Returns the floor; without one, a copy of another setting goes.

    Raises UserError, in one line, if the file is not one of this version.
    """
    found = read(place(directory.parent, config, runs)) or find(directory, config, runs)
    if found is None:
        (directory / NAME).unlink(missing_ok=True)
    else:
        write(found, directory / NAME)
    return found


def read(path: Path) -> Floor | None:
    """The floor in a file, None if there is no such file.

    Raises UserError, in one line, if the file is not one of this version.
    """
    if not path.is_file():
        return None
    try:
        return _FLOOR.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path} is not readable: run `dflash noise` again") from error


def write(floor: Floor, path: Path) -> None:
    """Write noise.json atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(_FLOOR.dump_json(floor, indent=2) + b"\n")
