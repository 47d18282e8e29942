"""An experiment: a control and arms, each a patch of dotted names on one composed config.

What an arm changes is declared in its YAML, resolved, printed and recorded; an arm whose resolved
configuration differs from the control's anywhere else is refused (design §8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash.lab.config import (
    LabConfig,
    compose_config,
    config_from_tree,
    experiments_dir,
    parse_seeds,
    valid_names,
)
from dflash.lab.experiment_file import find_experiment, read_experiment
from dflash.lab.factorial import cells
from dflash.lab.invariants import Invariant, parse_invariants
from dflash.lab.schema import check_name, difference, flatten, patched
from dflash.model.errors import UserError

CONTROL = "control"
OF_THE_RUN = ("seeds", "executor")
MATCHES = ("parameters", "draft_flops", "tokens", "wall_time")
Diff = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Arm:
    """One column of the comparison.

    Attributes:
        diff: dotted name -> (control's value, this arm's value); empty for the control.
        levels: dotted name -> value of every factor of the grid that this arm is a cell of; empty
            outside the grid.
        matched: what ``match`` set so that the arm's budget equals the control's.
        invalid: it sees what decoding cannot (``attention.leak``): never a result.
    """

    name: str
    config: LabConfig
    diff: Diff
    levels: dict[str, Any] = field(default_factory=dict)
    matched: dict[str, Any] = field(default_factory=dict)

    @property
    def control(self) -> bool:
        return self.name == CONTROL

    @property
    def invalid(self) -> bool:
        return self.config.drafter.attention.leak > 0


@dataclass(frozen=True)
class Experiment:
    """A question with its arms; ``arms[0]`` is the control.

    Attributes:
        path: the file it was read from.
        match: which budget the arms share with the control by design, "" for none; see
            :mod:`dflash.lab.budget`.
        invariants: what the arms must not change.
    """

    name: str
    question: str
    hypothesis: str
    paper: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    path: Path
    match: str = ""
    invariants: tuple[Invariant, ...] = ()

    @property
    def config(self) -> LabConfig:
        """The control's configuration."""
        return self.arms[0].config

    def arm(self, name: str) -> Arm:
        """The arm of a name; one that does not exist is a UserError."""
        arms = {arm.name: arm for arm in self.arms}
        if name not in arms:
            raise UserError.of(f"arm of {self.name}", name, ", ".join(arms))
        return arms[name]


def load_experiment(
    name: str, overrides: list[str] | None = None, directory: Path | None = None
) -> Experiment:
    """Read, compose and check an experiment.

    Args:
        name: of a file in ``experiments/ablation`` without ``.yaml``, or a path to a YAML file.
        overrides: of the command line; they change the control and every arm alike.

    Raises:
        UserError: unknown experiment, key or value; an arm that changes nothing, or more than it
            declares.
    """
    directory = directory or experiments_dir()
    path = find_experiment(name, directory)
    text = read_experiment(path)
    config = compose_config(overrides, base=text.get("base", []), directory=directory)
    control = _patched_config(config, _patch(text.get("control") or {}, CONTROL), CONTROL)
    grid = _patch(text.get("grid") or {}, "grid")
    levels = cells(grid, control.tree())
    own = {name: flatten(control.tree()).get(name) for name in grid}
    arms = [Arm(CONTROL, control, {}, own)]
    arms += [_arm(arm, patch, control, patch) for arm, patch in levels.items()]
    arms += [_arm(arm, patch or {}, control) for arm, patch in (text.get("arms") or {}).items()]
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise UserError.of("arms", max(names, key=names.count), "names that the grid does not use")
    match = _match(text.get("match") or "")
    invariants = parse_invariants(text.get("invariants", []), names)
    if match == "parameters" and any(item.what == match for item in invariants):
        raise UserError("invariants: 'same parameters' is what match=parameters sees to already")
    seeds = config.seeds or parse_seeds(text.get("seeds", [0, 1, 2]))
    if not seeds:
        raise UserError.of("seeds", [], "at least one, e.g. [0,1,2]")
    return Experiment(
        name=path.stem,
        question=str(text["question"]).strip(),
        hypothesis=str(text["hypothesis"]).strip(),
        paper=str(text["paper"]).strip(),
        arms=tuple(arms),
        seeds=seeds,
        match=match,
        invariants=invariants,
        path=path,
    )


def _match(value: Any) -> str:
    if value not in ("", *MATCHES):
        raise UserError.of("match", value, ", ".join(MATCHES))
    return str(value)


def load_arm(name: str, overrides: list[str] | None = None) -> tuple[Experiment, Arm]:
    """An experiment and the arm of it that ``EXPERIMENT/ARM`` names; its control without ``/ARM``.

    Raises:
        UserError: see ``load_experiment``; an arm that it does not have.
    """
    path, arm = split_arm(name)
    experiment = load_experiment(path, overrides)
    return experiment, experiment.arm(arm or CONTROL)


def split_arm(name: str) -> tuple[str, str | None]:
    """``EXPERIMENT/ARM`` as its parts; a file's path, or a name alone, has no arm."""
    path, slash, arm = name.rpartition("/")
    whole = not slash or name.endswith((".yaml", ".yml"))
    return (name, None) if whole else (path, arm)


def _arm(name: Any, patch: Any, control: LabConfig, levels: Mapping[str, Any] | None = None) -> Arm:
    """An arm of the file, or with ``levels`` a cell of the grid, which states them all."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", str(name)) or name == CONTROL:
        raise UserError.of("arms", name, f"letters, digits, _ . + -, and not {CONTROL!r}")
    where = f"arm {name}"
    flat = _patch(patch, where)
    config = _patched_config(control, flat, where)
    diff = difference(control.tree(), config.tree())
    before = flatten(control.tree())
    for key in flat if levels is None else ():
        if key not in diff:
            value = before.get(key)
            raise UserError(f"{where}: {key} is {value!r} in the control too, so it tests nothing")
    undeclared = sorted(diff.keys() - flat.keys())
    if undeclared:
        raise UserError(f"{where} changes {undeclared[0]}, which it does not declare")
    if not diff:
        raise UserError(f"{where} changes nothing, so it tests nothing")
    return Arm(str(name), config, diff, dict(levels or {}))


def _patch(patch: Any, where: str) -> dict[str, Any]:
    """A patch as a flat mapping of known names."""
    if not isinstance(patch, Mapping):
        raise UserError(f"{where}: {patch!r} is not a mapping of dotted keys to values")
    try:
        flat = flatten(patch)
        for key in flat:
            check_name(key, valid_names())
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    for key in flat:
        if key.partition(".")[0] in OF_THE_RUN:
            raise UserError(f"{where}: {key} belongs to the whole run, not to an arm")
    return flat


def _patched_config(config: LabConfig, flat: dict[str, Any], where: str) -> LabConfig:
    try:
        tree = patched(config.tree(), flat)
        resolved = config_from_tree(tree, config.recipe, config.tier)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return replace(resolved, executor=config.executor)
