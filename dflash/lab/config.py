"""The configuration of a run: one dataclass per part, composed by Hydra from ``experiments/``.

Every default lives in a dataclass; YAML and the command line hold only deviations. Order of
precedence, weakest first: dataclass, target/, recipe/, tier/, config.yaml, the experiment's
``base``, the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dflash.data.config import DataConfig
from dflash.decoding.config import DecodeConfig
from dflash.lab.executors.config import ExecutorConfig
from dflash.lab.schema import check_name, default_tree, names_of, nearest, plain
from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches, parse_dataclass
from dflash.target.config import TargetConfig
from dflash.training.config import IRRELEVANT, TrainConfig

GROUPS = ("target", "recipe", "tier")
SCHEMA = "dflash_schema"


@dataclass(frozen=True)
class LabConfig:
    """Everything that determines a cell except its seed; and where cells run."""

    target: TargetConfig
    drafter: DrafterSwitches = field(default_factory=DrafterSwitches)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    seeds: tuple[int, ...] = ()  # empty: the experiment's own
    recipe: str = ""
    tier: str = ""

    def tree(self) -> dict[str, Any]:
        """What determines a cell, as plain nested data.

        Without the names of recipe and tier, whose effect is in the rest, and the executor.
        """
        tree = dataclasses.asdict(self)
        del tree["recipe"], tree["tier"], tree["executor"]
        return plain(tree)

    @property
    def setting(self) -> str:
        """Names all that a measurement may depend on but its seed: what a noise floor is of."""
        tree = self.tree()
        del tree["seeds"]
        tree["train"] = {k: v for k, v in tree["train"].items() if k not in IRRELEVANT}
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


SECTIONS: dict[str, type] = {
    "target": TargetConfig,
    "drafter": DrafterSwitches,
    "data": DataConfig,
    "train": TrainConfig,
    "decode": DecodeConfig,
    "executor": ExecutorConfig,
}


@functools.cache
def valid_names() -> list[str]:
    """All dotted names a patch or an override may set."""
    leaves = [name for part, cls in SECTIONS.items() for name in names_of(cls, f"{part}.")]
    return [*leaves, "seeds"]


def experiments_dir() -> Path:
    """``$DFLASH_EXPERIMENTS``, else ``./experiments``, else the checkout of an editable install.

    Raises:
        UserError: none of them holds a config.yaml.
    """
    given = os.environ.get("DFLASH_EXPERIMENTS")
    checkout = Path(__file__).resolve().parents[2] / "experiments"
    places = [Path(given)] if given else [Path.cwd() / "experiments", checkout]
    for place in places:
        if (place / "config.yaml").is_file():
            return place.resolve()
    looked = ", ".join(str(place) for place in places)
    raise UserError(f"no config.yaml of experiments at {looked}; set DFLASH_EXPERIMENTS")


def compose_config(
    overrides: list[str] | None = None,
    base: list[str] | None = None,
    directory: Path | None = None,
) -> LabConfig:
    """Compose and validate.

    Args:
        overrides: the command line's, in Hydra's grammar: ``target=qwen3_4b``,
            ``drafter.num_layers=3``, ``+data.eval.gsm8k=20``, ``~data.eval.gsm8k``.
        base: weaker overrides of an experiment; one that the command line repeats is dropped.
        directory: where config.yaml is; default ``experiments_dir()``.

    Raises:
        UserError: unknown key or group choice (with the nearest), wrong type or value.
    """
    directory = directory or experiments_dir()
    strong = _parsed(overrides or [])
    keys = {item.key_or_group for item in strong}
    weak = [item for item in _parsed(base or []) if item.key_or_group not in keys]
    for item in [*weak, *strong]:
        _check_override(item, directory)
    lines = [_open_mapping(item) for item in [*weak, *strong]]
    tree, choices = _hydra(directory, lines)
    return config_from_tree(tree, recipe=choices["recipe"], tier=choices["tier"])


def config_from_tree(tree: dict[str, Any], recipe: str, tier: str) -> LabConfig:
    """Validate plain nested data into a LabConfig.

    Raises:
        UserError: unknown key, wrong type or value; a tuple of seeds with a duplicate.
    """
    names = valid_names()
    for name in _keys_of(tree):
        check_name(name, names)
    parts: dict[str, Any] = {
        part: parse_dataclass(cls, tree.get(part, {}), part) for part, cls in SECTIONS.items()
    }
    seeds = parse_seeds(tree.get("seeds", []))
    return LabConfig(**parts, seeds=seeds, recipe=recipe, tier=tier)


def parse_seeds(value: Any) -> tuple[int, ...]:
    """Seeds as a tuple of distinct non-negative integers; a single integer is one seed."""
    seeds = [value] if isinstance(value, int) else value
    allowed = "distinct integers from 0 on, e.g. [0,1,2]"
    if not isinstance(seeds, list | tuple) or len(set(map(str, seeds))) != len(seeds):
        raise UserError.of("seeds", value, allowed)
    if any(isinstance(seed, bool) or not isinstance(seed, int) or seed < 0 for seed in seeds):
        raise UserError.of("seeds", value, allowed)
    return tuple(seeds)


def _keys_of(tree: dict[str, Any]) -> list[str]:
    """Dotted names of all leaves, as far as they are mappings."""
    names: list[str] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            names += [f"{key}.{inner}" for inner in _keys_of(value)]
        else:
            names.append(str(key))
    return names


def _parsed(overrides: list[str]) -> list[Override]:
    try:
        return list(OverridesParser.create().parse_overrides(overrides))
    except HydraException as error:
        raise UserError(_one_line(error)) from None


def _check_override(item: Override, directory: Path) -> None:
    name = item.key_or_group
    if item.is_sweep_override():
        raise UserError(f"{item.input_line} is a sweep; give one value, or a list as {name}=[a,b]")
    if name in GROUPS:
        choices = sorted(path.stem for path in (directory / name).glob("*.yaml"))
        choice = str(item.value())
        if choice not in choices:
            hint = f"did you mean {nearest(choice, choices)!r}? " if choices else ""
            raise UserError(f"{name}={choice!r} is not valid; {hint}allowed: {', '.join(choices)}")
        return
    check_name(name, [*valid_names(), *GROUPS])


def _open_mapping(item: Override) -> str:
    """Adding a key to a free mapping needs no ``+``: ``data.eval.gsm8k=20`` just works."""
    line, name = str(item.input_line), item.key_or_group
    free = {f"{name}.*", f"{name.rpartition('.')[0]}.*"} & set(valid_names())
    bare = not (item.is_add() or item.is_force_add() or item.is_delete())
    return f"++{line}" if bare and free else line


def _hydra(directory: Path, overrides: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Hydra's composition as plain data, and the chosen member of every group."""
    schema: dict[str, Any] = {"seeds": []}
    schema |= {part: default_tree(cls) for part, cls in SECTIONS.items()}
    ConfigStore.instance().store(name=SCHEMA, node=OmegaConf.create(schema))
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(directory), version_base="1.3"):
            composed = compose("config", overrides=overrides, return_hydra_config=True)
        choices = {group: str(composed.hydra.runtime.choices[group]) for group in GROUPS}
        OmegaConf.set_struct(composed, False)
        del composed["hydra"]
        tree = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from None
    assert isinstance(tree, dict)
    return plain(tree), choices


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
