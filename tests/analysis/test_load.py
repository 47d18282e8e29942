"""Reading a result: what comes back, and the one line a broken one gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.load import load
from analysis.report import write_report
from analysis.schema import TABLES
from dflash.model.errors import UserError

Make = Callable[..., Path]
SMALL = {"arms": {"control": 0.0}, "seeds": (0,), "benches": {"gsm8k": 2}}


def test_tables_have_the_documented_columns(make_result: Make) -> None:
    directory = make_result(**SMALL)
    result = load("toy", directory.parent)
    for name, columns in TABLES.items():
        assert list(getattr(result, name).columns) == list(columns)
    assert result.prompts["lossless"].dtype == "boolean"
    assert result.prompts["tau"].dtype == "float64"


def test_columns_of_nulls_are_typed(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        for column in ("ar_seconds", "spec_seconds", "lossless", "first_divergence"):
            frames["prompts"][column] = None
        frames["runs"]["error"] = None

    result = load("toy", make_result(**SMALL, change=change).parent)
    assert result.prompts["ar_seconds"].dtype == "float64"
    assert (result.runs["error"] == "").all()


def fails(directory: Path, experiment: str = "toy") -> str:
    with pytest.raises(UserError) as caught:
        load(experiment, directory.parent)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_unknown_experiment_names_those_that_exist(make_result: Make) -> None:
    assert "allowed: toy" in fails(make_result(**SMALL), "no_such")


@pytest.mark.parametrize("name", TABLES)
def test_missing_file(make_result: Make, name: str) -> None:
    directory = make_result(**SMALL)
    (directory / f"{name}.parquet").unlink()
    assert f"{name}.parquet is missing" in fails(directory)


def test_truncated_file(make_result: Make) -> None:
    directory = make_result(**SMALL)
    path = directory / "steps.parquet"
    path.write_bytes(path.read_bytes()[:500])
    assert "cannot be read" in fails(directory)


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("runs", lambda f: f.drop(columns=["moved"]), "moved"),
        ("runs", lambda f: f.iloc[:0], "holds no run"),
        ("runs", lambda f: pd.concat([f, f.iloc[:1]]), "same row twice"),
        ("runs", lambda f: f.assign(status="done"), "status='done'; allowed: failed or ok"),
        ("prompts", lambda f: pd.concat([f, f.iloc[:1]]), "same row twice"),
        ("prompts", lambda f: f.assign(tau="high"), "column tau is not of type float"),
        ("prompts", lambda f: f.assign(turn=None), "column turn has missing values"),
        ("survival", lambda f: f.assign(run_id="ghost" + f["run_id"]), "is not in runs.parquet"),
    ],
)
def test_malformed_table(make_result: Make, table: str, change: Callable, words: str) -> None:
    def apply(frames: dict[str, pd.DataFrame]) -> None:
        frames[table] = change(frames[table])

    assert words in fails(make_result(**SMALL, change=apply))


def test_the_configuration_is_read_where_there_is_one(make_result: Make) -> None:
    directory = make_result()
    assert load(directory.name, directory.parent).config == {}
    (directory / "config.yaml").write_text("question: Does it matter?\ncontrol: {}\narms: {}\n")
    assert load(directory.name, directory.parent).config["question"] == "Does it matter?"
    assert "\n\nDoes it matter?\n\n" in write_report(directory, (), resamples=50).read_text()
    (directory / "config.yaml").write_text("[]")
    with pytest.raises(UserError, match=r"config\.yaml lacks question, control or arms"):
        load(directory.name, directory.parent)
