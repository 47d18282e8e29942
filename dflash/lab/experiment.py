"""An experiment: a control and arms, each a patch of dotted names on one composed config.

What an arm changes is declared in its YAML, resolved, printed and recorded; an arm whose resolved
configuration differs from the control's anywhere else is refused (design §8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dflash.lab.config import (
    LabConfig,
    compose_config,
    config_from_tree,
    experiments_dir,
    parse_seeds,
    valid_names,
)
from dflash.lab.schema import check_name, difference, flatten, nearest, patched
from dflash.model.errors import UserError

CONTROL = "control"
FIELDS = ("question", "hypothesis", "control", "arms", "seeds", "paper", "base")
Diff = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Arm:
    """One column of the comparison.

    Attributes:
        diff: dotted name -> (control's value, this arm's value); empty for the control.
        invalid: it sees what decoding cannot (``attention.leak``): never a result.
    """

    name: str
    config: LabConfig
    diff: Diff

    @property
    def control(self) -> bool:
        return self.name == CONTROL

    @property
    def invalid(self) -> bool:
        return self.config.drafter.attention.leak > 0


@dataclass(frozen=True)
class Experiment:
    """A question with its arms; ``arms[0]`` is the control, ``path`` the file it was read from."""

    name: str
    question: str
    hypothesis: str
    paper: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    path: Path

    @property
    def config(self) -> LabConfig:
        """The control's configuration."""
        return self.arms[0].config


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
    base = _list_of_text(text.get("base", []), path)
    config = compose_config(overrides, base=base, directory=directory)
    control = _patched_config(config, _patch(text.get("control") or {}, CONTROL), CONTROL)
    arms = [Arm(CONTROL, control, {})]
    arms += [_arm(arm, patch or {}, control) for arm, patch in text["arms"].items()]
    return Experiment(
        name=path.stem,
        question=str(text["question"]).strip(),
        hypothesis=str(text["hypothesis"]).strip(),
        paper=str(text["paper"]).strip(),
        arms=tuple(arms),
        seeds=config.seeds or parse_seeds(text.get("seeds", [0, 1, 2])),
        path=path,
    )


def arm_config(name: str, overrides: list[str] | None = None) -> LabConfig:
    """The configuration of ``EXPERIMENT/ARM``, or of an experiment's control.

    Raises:
        UserError: see ``load_experiment``; an arm that it does not have.
    """
    path, arm_name = split_arm(name)
    return find_arm(load_experiment(path, overrides), arm_name or CONTROL).config


def split_arm(name: str) -> tuple[str, str | None]:
    """``EXPERIMENT/ARM`` as its parts; a file's path, or a name alone, has no arm."""
    path, slash, arm_name = name.rpartition("/")
    whole = not slash or name.endswith((".yaml", ".yml"))
    return (name, None) if whole else (path, arm_name)


def find_arm(experiment: Experiment, name: str) -> Arm:
    """An arm by its name; a UserError lists those there are."""
    arms = {arm.name: arm for arm in experiment.arms}
    if name not in arms:
        raise UserError.of(f"arm of {experiment.name}", name, ", ".join(arms))
    return arms[name]


def list_experiments(directory: Path | None = None) -> dict[str, str]:
    """Name -> question of every shipped experiment."""
    folder = (directory or experiments_dir()) / "ablation"
    paths = sorted(folder.glob("*.yaml"))
    return {path.stem: " ".join(str(read_experiment(path)["question"]).split()) for path in paths}


def find_experiment(name: str, directory: Path) -> Path:
    """The file of an experiment; an unknown name is a UserError with the nearest one."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"experiment file {name} does not exist")
        return path
    folder = directory / "ablation"
    path = folder / f"{name}.yaml"
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in names:
        hint = f"did you mean {nearest(name, names)!r}? " if names else ""
        raise UserError(f"experiment {name!r} does not exist; {hint}see `dflash list`")
    return path


def read_experiment(path: Path) -> dict[str, Any]:
    """The YAML of an experiment with its fields checked, arms unresolved."""
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path} is not readable YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} must be a mapping with the fields {', '.join(FIELDS)}")
    text = {str(key): value for key, value in loaded.items()}  # keys of YAML may be numbers
    for key in text:
        if key not in FIELDS:
            near = nearest(key, list(FIELDS))
            raise UserError(f"{path.name}: {key} is not a field; did you mean {near!r}?")
    for key in ("question", "hypothesis", "paper", "arms"):
        if not text.get(key):
            raise UserError(f"{path.name}: the field {key} is missing or empty")
    if not isinstance(text["arms"], dict):
        raise UserError(f"{path.name}: arms must map a name to a patch of dotted keys")
    return text


def _arm(name: Any, patch: Any, control: LabConfig) -> Arm:
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", str(name)) or name == CONTROL:
        raise UserError.of("arms", name, f"letters, digits, _ . + -, and not {CONTROL!r}")
    where = f"arm {name}"
    flat = _patch(patch, where)
    config = _patched_config(control, flat, where)
    diff = difference(control.tree(), config.tree())
    before = flatten(control.tree())
    for key in flat:
        if key not in diff:
            value = before.get(key)
            raise UserError(f"{where}: {key} is {value!r} in the control too, so it tests nothing")
    undeclared = sorted(diff.keys() - flat.keys())
    if undeclared:
        raise UserError(f"{where} changes {undeclared[0]}, which it does not declare")
    if not diff:
        raise UserError(f"{where} changes nothing, so it tests nothing")
    return Arm(str(name), config, diff)


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
    if "seeds" in flat:
        raise UserError(f"{where}: seeds belong to the experiment, not to an arm")
    return flat


def _patched_config(config: LabConfig, flat: dict[str, Any], where: str) -> LabConfig:
    try:
        return config_from_tree(patched(config.tree(), flat), config.recipe, config.tier)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _list_of_text(value: Any, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{path.name}: base must be a list of overrides such as drafter.vocab=full")
    return value
