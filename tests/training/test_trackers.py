"""Every tracker read back: names, parameters, each step once, and again after a kill."""

from __future__ import annotations

import dataclasses
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflash.lab.config import compose_config
from dflash.model import UserError
from dflash.training.trackers import MODULES, build_tracker, check_tracker
from tests.training.child import material, resumable
from tests.training.test_resume import Killed, die_at
from tests.training.toys import train

STEPS = list(range(10))


@pytest.fixture(scope="module")
def stuff():
    return material()


@pytest.fixture
def run(stuff, tmp_path):
    """Train with a tracker; on request killed at step 8, two steps after a resume point."""

    def start(logger: str, killed: bool = False) -> Path:
        directory = tmp_path / "train-abc.partial"
        config = dataclasses.replace(resumable(), logger=logger)
        if killed:
            with pytest.MonkeyPatch.context() as patch:
                die_at(patch, 8, "before")
                with pytest.raises(Killed):
                    train(directory, *stuff, config)
        train(directory, *stuff, config)
        return directory

    return start


def scalars(directory: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "log")).Reload()
    return {tag: [item.step for item in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("killed", [False, True])
def test_tensorboard(run, killed):
    directory = run("tensorboard", killed)
    steps = scalars(directory)
    assert steps["loss"] == steps["lr"] == STEPS
    text = (directory / "log" / "hparams.yaml").read_text()
    assert "drafter.num_layers: 1" in text
    assert "train.lr:" in text
    assert "train.logger" not in text


def test_tensorboard_killed_before_the_first_resume_point(stuff, run, tmp_path):
    config = dataclasses.replace(resumable(), logger="tensorboard")
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, 2, "before")
        with pytest.raises(Killed):
            train(tmp_path / "train-abc.partial", *stuff, config)
    assert scalars(run("tensorboard"))["loss"] == STEPS


@pytest.fixture
def mlflow_uri(tmp_path, monkeypatch) -> str:
    uri = f"file:{tmp_path / 'mlruns'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return uri


@pytest.mark.parametrize("killed", [False, True])
def test_mlflow(run, mlflow_uri, killed):
    from mlflow.tracking import MlflowClient

    run("mlflow", killed)
    client = MlflowClient(mlflow_uri)
    experiment = client.get_experiment_by_name("dflash-lab")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "train-abc"
    assert found.info.status == "FINISHED"
    assert found.data.params["drafter.num_layers"] == "1"
    assert found.data.params["seed"] == "0"
    for name in ("loss", "lr"):
        history = client.get_metric_history(found.info.run_id, name)
        assert sorted(metric.step for metric in history) == STEPS


BLOCK, HEADER = 32768, struct.Struct("<IHB")  # LevelDB's log format: checksum, length, type
LAST_PARTS = (1, 4)  # a whole record, or the end of one


def records(file: Path) -> Iterator[bytes]:
    """The records of an offline run, which W&B itself reads only to send them."""
    data, position, parts = file.read_bytes(), 7, b""
    while position + HEADER.size <= len(data):
        if BLOCK - position % BLOCK < HEADER.size:  # the rest of a block is padding
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        position += HEADER.size
        parts += data[position : position + length]
        position += length
        if kind in LAST_PARTS:
            yield parts
            parts = b""


def told(file: Path) -> list[Any]:
    """The records, read."""
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(data) for data in records(file)]


def offline(folder: Path) -> tuple[list[dict[str, str]], dict[str, str], str]:
    """History rows, parameters and the name of an offline run."""
    rows, parameters, name = [], {}, ""
    (file,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 20
    while "exit" not in (kinds := [record.WhichOneof("record_type") for record in told(file)]):
        assert time.monotonic() < deadline, kinds  # its service writes in the background
        time.sleep(0.05)
    for record in told(file):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or item.nested_key[0]: item.value_json for item in items})
        for item in (*record.config.update, *record.run.config.update):
            parameters[item.key or item.nested_key[0]] = item.value_json
        name = record.run.display_name or name
    return rows, parameters, name


@pytest.mark.parametrize("killed", [False, True])
def test_wandb_offline(run, killed, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = run("wandb", killed)
    folders = sorted(directory.glob("log-*/wandb/offline-run-*-train-abc"))
    assert len(folders) == 1 + killed
    seen: dict[int, str] = {}
    for folder in folders:
        rows, _, name = offline(folder)
        assert name == "train-abc"
        steps = [int(row["_step"]) for row in rows]
        assert steps == sorted(set(steps))
        for row in rows:
            assert seen.setdefault(int(row["_step"]), row["loss"]) == row["loss"]
    assert sorted(seen) == STEPS
    _, parameters, _ = offline(folders[0])
    assert parameters["drafter.num_layers"] == "1"


def test_wandb_runs_of_one_process_are_apart(tmp_path, monkeypatch):
    """Drafters that train together: one begins while another's run is in progress."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    runs = {name: build_tracker("wandb", tmp_path / name, 0) for name in ("train-a", "train-b")}
    for step in STEPS:
        for offset, tracker in enumerate(runs.values()):
            tracker.log_metrics({"loss": float(step + 100 * offset)}, step)
    for tracker in runs.values():
        tracker.finalize("success")
    for offset, name in enumerate(runs):
        (folder,) = (tmp_path / name).glob(f"log-*/wandb/offline-run-*-{name}")
        rows, _, _ = offline(folder)
        assert [float(row["loss"]) for row in rows] == [step + 100.0 * offset for step in STEPS]


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_package_is_one_line_before_anything_runs(name, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    monkeypatch.setattr("dflash.training.trackers.find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"train\.logger='{name}'.*pip install") as caught:
        check_tracker(name)
    assert "\n" not in str(caught.value)
    check_tracker("csv")


def test_mlflow_must_know_where_to_write(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI=None"):
        check_tracker("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI='nonsense://here'") as caught:
        check_tracker("mlflow")
    assert "\n" not in str(caught.value)


def test_every_tracker_is_one_word_of_the_configuration():
    for name in ("csv", *MODULES):
        assert compose_config([f"train.logger={name}"]).train.logger == name
    with pytest.raises(UserError, match=r"train\.logger"):
        compose_config(["train.logger=paper"])
