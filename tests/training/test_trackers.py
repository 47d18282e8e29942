"""Every tracker read back: names, parameters, each step once, and again after a kill."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from dflash.lab.config import compose_config
from dflash.model import UserError
from dflash.training.trackers import MODULES, check_tracker
from tests.training.child import material, resumable
from tests.training.test_resume import Killed, die_at
from tests.training.toys import train

STEPS = list(range(10))


@pytest.fixture(scope="module")
def stuff():
    return material()


@pytest.fixture
def run(stuff, tmp_path):
    """Train with a tracker; killed at step 7, after the resume point of step 6, when asked."""

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


def history(folder: Path) -> list[dict[str, str]]:
    """The rows of an offline run of W&B."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    rows = []
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or item.nested_key[0]: item.value_json for item in items})
    return rows


@pytest.mark.parametrize("killed", [False, True])
def test_wandb_offline(run, killed, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    directory = run("wandb", killed)
    folders = sorted((directory / "wandb").glob("offline-run-*-train-abc"))
    assert len(folders) == 1 + killed
    seen: dict[int, str] = {}
    for folder in folders:
        rows = history(folder)
        steps = [int(row["_step"]) for row in rows]
        assert steps == sorted(set(steps))
        for row in rows:
            assert seen.setdefault(int(row["_step"]), row["loss"]) == row["loss"]
    assert sorted(seen) == STEPS
    import wandb

    assert wandb.run is None, "the next drafter of this process must have a run of its own"


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
    assert json.dumps(sorted(MODULES)) == '["mlflow", "tensorboard", "wandb"]'
