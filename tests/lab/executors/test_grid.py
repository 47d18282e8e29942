"""Twelve cells: killed, shared by two processes, on two workers, and with an arm added."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from dflash.lab.store import Store
from tests.lab.executors.conftest import run, spawn
from tests.lab.executors.grid import CELLS, assert_built_once, tables

KILLS = 5


def trained(store: Store) -> int:
    return len(store.entries("train"))


def test_killed_five_times_it_ends_as_an_uninterrupted_run(whole, tmp_path):
    store = Store(tmp_path / "store")
    moments = random.Random(0)
    before = 0
    for kill in range(KILLS):
        process = spawn(tmp_path)
        while trained(store) < min(before + 1, CELLS - KILLS + kill):  # it got somewhere
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.5))  # and is anywhere in the next cells
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert trained(store) < CELLS, "too late to interrupt anything"
        before = trained(store)
    _, finished = run(tmp_path)
    assert finished.failed == []
    assert tables(finished.directory) == whole
    assert_built_once(store.journal())
    stored = {path.name for path in store.root.iterdir() if (path / "manifest.json").is_file()}
    assert {line["name"] for line in store.journal()} == stored


def test_two_processes_share_the_work(whole, tmp_path):
    processes = [spawn(tmp_path), spawn(tmp_path)]
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert tables(tmp_path / "twelve") == whole
    journal = Store(tmp_path / "store").journal()
    assert_built_once(journal)
    builders = [line["pid"] for line in journal if str(line["name"]).startswith("train-")]
    assert len(builders) == CELLS
    assert min(builders.count(process.pid) for process in processes) >= CELLS // 4


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two cores")
def test_two_workers_give_the_tables_of_one(whole, tmp_path):
    lab, finished = run(tmp_path, "executor.workers=2")
    assert finished.failed == []
    assert tables(finished.directory) == whole
    assert_built_once(lab.store.journal())
    assert any(text.endswith(f"({CELLS} of {CELLS} cells)") for text in lab.said)


def test_an_added_arm_is_all_that_is_computed(tmp_path):
    lab, _ = run(tmp_path, "seeds=[0,1]")
    before = lab.store.journal()
    lab, finished = run(tmp_path, "seeds=[0,1]", name="more")
    new = [str(line["name"]).partition("-")[0] for line in lab.store.journal()[len(before) :]]
    assert sorted(new) == ["decode"] * 2 + ["replay"] * 2 + ["train"] * 2
    assert_built_once(lab.store.journal())
    assert finished.failed == []
