"""Arms that train together leave what they would have left alone, and pay for one target pass."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from analysis.load import load
from dflash.cli import main
from dflash.data.features import OnlineFeatures
from dflash.lab.cells import _job
from dflash.lab.executors.choice import choose_executor
from dflash.lab.experiment import load_experiment
from dflash.lab.grid import plan_arms
from dflash.lab.run import run_experiment
from dflash.lab.stages.common import Lab, read_json
from dflash.lab.stages.train import FACTS
from dflash.lab.store import Store
from dflash.lab.together import check_together, train_together
from dflash.model.errors import UserError
from dflash.training import module as training
from tests.training.toys import assert_same

ARMS = (
    "  bare: {drafter.attention.qk_norm: none}\n"
    "  late: {drafter.features.taps: [4, 2]}\n"
    "  short: {train.steps: 3, train.sequences: 3}\n"
    "  blind: {drafter.kv.fusion: none}"
)
ONLINE = [
    "data.mode=online",
    "data.train.written=13",  # 12 answers to train on: no row comes twice in six steps
    "train.steps=6",
    "train.checkpoint_every=2",
    "train.init=random",
]
WEIGHTS = "drafter/model.safetensors"
TIMES = ("train_seconds", "ar_seconds", "spec_seconds", "t_draft", "t_verify", "t_host")


@pytest.fixture
def several(small, small_overrides, write_experiment):
    """An experiment with four arms that read features online and one that reads none."""
    name = write_experiment(ARMS)
    return load_experiment(name, [*small_overrides, *ONLINE, "seeds=[0]"])


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """Rows for which the target ran."""
    rows: list[int] = []
    row = OnlineFeatures.row
    monkeypatch.setattr(
        OnlineFeatures, "row", lambda self, index: rows.append(index) or row(self, index)
    )
    return rows


def new_lab(path: Path) -> Lab:
    return Lab(Store(path), lambda text: None, progress=False)


def drafters(lab: Lab) -> dict[str, Path]:
    return {path.name: path for path in lab.store.entries("train")}


def logged(entry: Path) -> dict[int, str]:
    """Step -> loss over all parts of a run."""
    losses: dict[int, str] = {}
    for path in sorted(entry.glob("log-*/metrics.csv")):
        with path.open() as file:
            losses |= {int(row["step"]): row["loss"] for row in csv.DictReader(file)}
    return losses


def assert_equal_entries(ours: dict[str, Path], theirs: dict[str, Path]) -> None:
    """Same keys; weights, logs and facts equal bit for bit, seconds aside."""
    assert ours.keys() == theirs.keys()
    for name, entry in ours.items():
        other = theirs[name]
        assert_same(*(load_file(place / WEIGHTS) for place in (entry, other)))
        assert logged(entry) == logged(other)
        facts = [read_json(place / FACTS) for place in (entry, other)]
        for fact in facts:
            assert fact.pop("train_seconds") > 0
        assert [fact.pop("shared_pass") for fact in facts].count(True) <= 1
        assert facts[0] == facts[1]
        names = [{p.relative_to(e).as_posix() for p in e.rglob("*")} for e in (entry, other)]
        assert names[0] == names[1]


def test_together_equals_alone_at_one_forward_per_batch(several, tmp_path, counted):
    alone, together = new_lab(tmp_path / "alone"), new_lab(tmp_path / "together")
    assert run_experiment(alone, several, tmp_path / "a").failed == []
    assert len(counted) >= 3 * 6 * 2 + 3 * 3  # three arms of six steps, one of three
    counted.clear()
    train_together(together, plan_arms(together, several), 0)
    arms = [name for name in drafters(alone) if name in drafters(together)]
    assert len(arms) == 4, "the arm without features has nothing to share"
    assert 6 * 2 <= len(counted) <= 6 * 2 + 3 * 3
    finished = run_experiment(together, several, tmp_path / "b", together=True)
    assert finished.failed == []
    assert_equal_entries(drafters(together), drafters(alone))
    tables = [load("mine", tmp_path / place) for place in "ab"]
    for table in ("runs", "prompts", "steps", "survival"):
        frames = [getattr(t, table).drop(columns=[*TIMES], errors="ignore") for t in tables]
        assert frames[0].to_csv() == frames[1].to_csv()


def test_matched_arms_pay_for_one_pass(several, tmp_path, counted):
    lab = new_lab(tmp_path / "store")
    planned = [item for item in plan_arms(lab, several) if item.arm.name != "short"]
    train_together(lab, planned, 0)
    assert len(drafters(lab)) == 3
    assert len(counted) == 6 * 2, "one forward per sequence of a batch, whatever the arms"
    train_together(lab, planned, 0)
    assert len(counted) == 6 * 2, "finished work is not redone"


HONEST = training.DrafterTraining.training_step


def fail_in(patch, which, step: int, error: BaseException) -> None:
    """The drafters that ``which`` picks fail at a step."""

    def fragile(self, batch, batch_idx):
        if self.global_step == step and which(self.drafter):
            raise error
        HONEST(self, batch, batch_idx)

    patch.setattr(training.DrafterTraining, "training_step", fragile)


def bare(drafter) -> bool:
    return drafter.switches.attention.qk_norm == "none"


def test_an_arm_that_fails_does_not_lose_the_others(several, tmp_path, monkeypatch):
    lab = new_lab(tmp_path / "store")
    said: list[str] = []
    lab = replace(lab, say=said.append)
    fail_in(monkeypatch, bare, 3, RuntimeError("it broke"))
    finished = run_experiment(lab, several, tmp_path / "results", together=True)
    assert finished.failed == [("bare", 0, "RuntimeError: it broke")]
    assert any("left the common training: RuntimeError('it broke')" in text for text in said)
    assert len(drafters(lab)) == 4
    monkeypatch.setattr(training.DrafterTraining, "training_step", HONEST)
    assert run_experiment(lab, several, tmp_path / "results", together=True).failed == []


class Killed(BaseException):
    """Nothing catches this."""


def test_any_interruption_leaves_no_trace(several, tmp_path):
    """An arm dies between resume points, so the arms are at different steps when they go on."""
    lab = new_lab(tmp_path / "store")
    planned = [item for item in plan_arms(lab, several) if item.arm.name != "blind"]
    with pytest.MonkeyPatch.context() as patch:
        fail_in(patch, bare, 3, Killed())
        with pytest.raises(Killed):
            train_together(lab, planned, 0)
    assert len(drafters(lab)) < 4
    train_together(lab, planned, 0)
    whole = new_lab(tmp_path / "whole")
    train_together(whole, planned, 0)
    names = [drafters(place).keys() for place in (lab, whole)]
    assert names[0] == names[1]
    for name, entry in drafters(lab).items():
        weights = [
            load_file(e / "drafter/model.safetensors") for e in (entry, drafters(whole)[name])
        ]
        assert_same(*weights)
        assert logged(entry) == logged(drafters(whole)[name])


def test_killed_and_resumed_equals_uninterrupted(
    small, small_overrides, tmp_path, write_experiment
):
    name = write_experiment(ARMS)

    def command(place: str, *more: str) -> list[str]:
        values = dict(item.split("=", 1) for item in [*small_overrides, *ONLINE, "seeds=[0]"])
        values |= {"train.steps": "12"}
        places = ["--store", str(tmp_path / place / "store"), "--results", str(tmp_path / place)]
        return ["ablate", name, *(f"{k}={v}" for k, v in values.items()), *places, *more]

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    program = [sys.executable, "-m", "dflash", *command("killed", "--together")]
    process = subprocess.Popen(program, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)
    store = tmp_path / "killed" / "store"
    while not any(store.glob("train-*.partial/*.ckpt")):
        assert process.poll() is None, "the run ended before a resume point was there"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert main(command("killed", "--together")) == 0
    assert main(command("whole")) == 0
    labs = [new_lab(tmp_path / place / "store") for place in ("killed", "whole")]
    assert drafters(labs[0]).keys() == drafters(labs[1]).keys()
    for entry in drafters(labs[0]):
        assert_same(*(load_file(drafters(place)[entry] / WEIGHTS) for place in labs))


def test_two_processes_at_once_build_every_entry_once(several, tmp_path, counted, monkeypatch):
    """Threads stand for processes: a lock of the store excludes whoever opened the file.

    Each dawdles whenever it holds a lock, so that another order of locks would be a deadlock.
    """
    build = Store.build

    def dawdling(self, key, work):
        return build(self, key, lambda directory: (time.sleep(0.2), work(directory)))

    labs = [new_lab(tmp_path / "store") for _ in range(2)]
    planned = [item for item in plan_arms(labs[0], several) if item.arm.name != "short"]
    for item in planned:
        labs[1].target(item.arm.config.target)
    orders = (planned, planned[::-1])
    threads = [
        threading.Thread(target=train_together, args=(lab, order, 0), daemon=True)
        for lab, order in zip(labs, orders, strict=True)
    ]
    train_together(new_lab(tmp_path / "store"), planned[:1], 0)  # answers are there
    monkeypatch.setattr(Store, "build", dawdling)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "they wait for each other"
    assert len(drafters(labs[0])) == 3
    assert 6 * 2 <= len(counted) <= 2 * 6 * 2, "each trained together what it had claimed"
    names = [line["name"] for line in labs[0].store.journal()]
    assert len(names) == len({*names})


def test_cells_of_another_process_are_left_to_it_and_ours_are_claimed(
    several, tmp_path, monkeypatch
):
    lab = new_lab(tmp_path / "store")
    planned = plan_arms(lab, several)
    names = {item.arm.name: _job(item, 0).claim for item in planned}
    taken: list[set[str]] = []

    def watched(self, batch, batch_idx):
        free = {arm for arm, name in names.items() if lab.store.claim(name)}
        taken.append(names.keys() - free)
        HONEST(self, batch, batch_idx)

    monkeypatch.setattr(training.DrafterTraining, "training_step", watched)
    with lab.store.claim(names["bare"]):
        train_together(lab, planned, 0)
    assert {path.name for path in lab.store.entries("train")} == {
        names[arm] for arm in ("control", "late", "short")
    }
    assert taken[0] == {"bare", "control", "late", "short"}
    assert all(lab.store.claim(name) for name in names.values()), "given back"


def test_there_must_be_something_to_share_here(lab, small, small_overrides, monkeypatch):
    def check(*more: str) -> None:
        experiment = load_experiment(small, [*small_overrides, *more])
        check_together(experiment, choose_executor(lab, experiment.config))

    with pytest.raises(UserError, match=r"data\.mode='offline' .* allowed: online"):
        check()
    devices = ("data.mode=online", "train.devices=2", "train.strategy=ddp_fork")
    with pytest.raises(UserError, match=r"train\.devices=2"):
        check(*devices)
    check("data.mode=online")
    monkeypatch.setattr("dflash.lab.executors.choice.cores_here", lambda: 2)
    with pytest.raises(UserError, match=r"needs executor\.kind=local, executor\.workers=1"):
        check("data.mode=online", "executor.workers=2")
