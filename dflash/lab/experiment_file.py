"""The YAML of an experiment: where it is, which fields it has, what they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dflash.lab.config import experiments_dir
from dflash.lab.schema import nearest
from dflash.model.errors import UserError

REQUIRED = ("question", "hypothesis", "paper")
FIELDS = (*REQUIRED, "control", "arms", "grid", "match", "invariants", "seeds", "base")


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
    """The fields of an experiment, checked for presence and shape; arms are unresolved.

    Raises:
        UserError: not YAML, an unknown field (with the nearest), or one missing or malformed.
    """
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
    for key in REQUIRED:
        if not text.get(key):
            raise UserError(f"{path.name}: the field {key} is missing or empty")
    if not text.get("arms") and not text.get("grid"):
        raise UserError(f"{path.name}: the fields arms and grid are both missing or empty")
    shapes = {"arms": "a name to a patch of dotted keys", "grid": "dotted keys to lists of values"}
    for key, shape in shapes.items():
        if not isinstance(text.get(key) or {}, Mapping):
            raise UserError(f"{path.name}: {key} must map {shape}")
    check_lines(text.get("base", []), f"{path.name}: base", "overrides such as drafter.vocab=full")
    check_lines(text.get("invariants", []), f"{path.name}: invariants", "lines")
    return text


def check_lines(value: Any, where: str, what: str) -> None:
    """Accept a list of text.

    Raises:
        UserError: anything else.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where} must be a list of {what}")
