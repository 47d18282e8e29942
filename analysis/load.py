"""Read one experiment's long tables into tidy frames, checked against `analysis.schema`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pyarrow import ArrowException

from analysis.floor import Floor
from analysis.floor import find as find_floor
from analysis.schema import KEYS, TABLES
from dflash.model.errors import UserError

_DTYPES = {"int": "int64", "float": "float64", "bool": "bool", "bool?": "boolean", "int?": "Int64"}


@dataclass(frozen=True)
class Result:
    """The four tables of one experiment; columns as documented in `analysis.schema`.

    `config` is what the folder's config.yaml says (question, control, arms), empty without one;
    `matched` what its matched.json says about data and starting values, empty without one;
    `floor` is the noise floor of its setting, None where none was measured.
    """

    experiment: str
    directory: Path
    runs: pd.DataFrame
    prompts: pd.DataFrame
    steps: pd.DataFrame
    survival: pd.DataFrame
    config: Mapping[str, Any] = field(default_factory=dict)
    matched: Mapping[str, Any] = field(default_factory=dict)
    floor: Floor | None = None


def load(experiment: str, results_dir: str | Path = "results") -> Result:
    """Read `results_dir/experiment`.

    Raises UserError, in one line, if the experiment, a file or a column is missing, a column has
    the wrong type, rows repeat or belong to no run, or there is no run at all.
    """
    root = Path(results_dir)
    directory = root / experiment
    if not directory.is_dir():
        known = sorted(path.parent.name for path in root.glob("*/runs.parquet"))
        raise UserError.of(
            "experiment", experiment, f"{', '.join(known) or 'nothing yet'} in {root}/"
        )
    frames = {name: _read(directory / f"{name}.parquet", name) for name in TABLES}
    runs = frames["runs"]
    if runs.empty:
        raise UserError(
            f"{directory}/runs.parquet holds no run: the experiment {experiment!r} has not run yet"
        )
    _check_values(runs, "status", {"ok", "failed"}, directory)
    _check_values(runs, "kind", {"drafter", "floor"}, directory)
    known_runs = set(runs["run_id"])
    for name, frame in frames.items():
        strangers = set(frame["run_id"]) - known_runs
        if strangers:
            raise UserError(
                f"{directory}/{name}.parquet: run_id={min(strangers)!r} is not in runs.parquet"
            )
    config = _config(directory)
    noise = find_floor(directory, config, runs) if "setting" in config else None
    return Result(
        experiment, directory, **frames, config=config, matched=_matched(directory), floor=noise
    )


def _config(directory: Path) -> dict[str, Any]:
    path = directory / "config.yaml"
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not readable as YAML") from error
    if not isinstance(config, dict) or not {"question", "control", "arms"} <= config.keys():
        raise UserError(f"{path} lacks question, control or arms: written by another version?")
    return config


def _matched(directory: Path) -> dict[str, Any]:
    path = directory / "matched.json"
    if not path.is_file():
        return {}
    try:
        matched = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not readable as JSON") from error
    if not isinstance(matched, dict) or "sentence" not in matched:
        raise UserError(f"{path} lacks sentence: written by another version?")
    return matched


def _read(path: Path, name: str) -> pd.DataFrame:
    """One table with exactly the documented columns, in order and in the documented types."""
    if not path.is_file():
        raise UserError(f"{path} is missing: run the experiment first")
    try:
        frame = pd.read_parquet(path)
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read as parquet: {reason}") from error
    columns = TABLES[name]
    missing = [column for column in columns if column not in frame]
    if missing:
        raise UserError(
            f"{path} lacks the column(s) {', '.join(missing)}: written by another version?"
        )
    frame = frame[list(columns)].copy()
    for column, (kind, _) in columns.items():
        frame[column] = _typed(frame[column], kind, path)
    repeated = frame.duplicated(KEYS[name])
    if repeated.any():
        row = frame.loc[repeated, KEYS[name]].iloc[0].to_dict()
        raise UserError(f"{path} holds the same row twice: {row}")
    return frame


def _typed(values: pd.Series, kind: str, path: Path) -> pd.Series:
    if kind == "str":
        return values.astype(object).where(values.notna(), "").astype(str)
    if kind in ("int", "bool") and values.isna().any():
        raise UserError(f"{path}: column {values.name} has missing values; allowed: {kind}")
    try:
        return values.astype(_DTYPES[kind])  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: column {values.name} is not of type {kind}") from error


def _check_values(runs: pd.DataFrame, column: str, allowed: set[str], directory: Path) -> None:
    strange = set(runs[column]) - allowed
    if strange:
        choices = " or ".join(sorted(allowed))
        raise UserError(f"{directory}/runs.parquet: {column}={min(strange)!r}; allowed: {choices}")
