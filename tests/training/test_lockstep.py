from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dflash.training import clock
from dflash.training.lockstep import run_in_lockstep


def walker(said, name, steps, start=0):
    """A run that does ``steps`` and writes down what it does; two at once would be seen."""
    busy = walker.busy

    def run(pace):
        for step in range(start, steps):
            pace(step)
            assert busy.acquire(blocking=False), "two run at once"
            said.append((step, name))
            busy.release()

    return run


walker.busy = threading.Lock()


def test_all_do_a_step_before_anyone_does_the_next():
    said = []
    assert run_in_lockstep([walker(said, name, 50) for name in "abc"]) == [None] * 3
    assert [step for step, _ in said] == [step for step in range(50) for _ in "abc"]
    firsts = [name for _, name in said[::3]]
    assert {name: firsts.count(name) for name in "abc"} == {"a": 17, "b": 17, "c": 16}


def test_who_is_behind_catches_up_first():
    said = []
    run_in_lockstep([walker(said, "a", 6), walker(said, "b", 6, start=4)])
    assert said[:4] == [(step, "a") for step in range(4)]
    assert sorted(said[4:6]) == [(4, "a"), (4, "b")]


def test_shorter_runs_leave_the_others():
    said = []
    run_in_lockstep([walker(said, "a", 2), walker(said, "b", 5), walker(said, "c", 0)])
    assert said[-3:] == [(2, "b"), (3, "b"), (4, "b")]


def test_one_that_fails_falls_out_with_its_error():
    said = []
    wrong = ValueError("broke")

    def failing(pace):
        pace(0)
        pace(1)
        raise wrong

    runs = [walker(said, "a", 4), failing, walker(said, "b", 4)]
    assert run_in_lockstep(runs) == [None, wrong, None]
    assert sorted(said) == [(step, name) for step in range(4) for name in "ab"]


def test_an_interruption_in_one_ends_all():
    said = []

    def interrupted(pace):
        pace(0)
        pace(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_lockstep([walker(said, "a", 1000), interrupted])
    assert len(said) <= 3


def test_ctrl_c_reaches_the_runs(monkeypatch):
    """The main thread is interrupted while it waits for the others."""
    said = []
    join = threading.Thread.join
    calls = []

    def interrupted(self, timeout=None):
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        join(self, timeout)

    def endless(pace):
        step = 0
        while True:
            pace(step)
            step += 1

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_in_lockstep([endless, walker(said, "a", 10**9)])
    assert not any(thread.is_alive() for thread in calls)


def test_waiting_for_others_is_not_counted(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    watch = clock.TrainClock(tmp_path / "clock.json")
    trainer = SimpleNamespace(callback_metrics={"supervised": 1.0, "loss": 1.0})

    def pass_time(seconds):
        now[0] += seconds

    watch.on_train_start(trainer, None)
    for _ in range(2):
        watch.uncounted(lambda step: pass_time(100.0))(0)
        pass_time(3.0)
        watch.on_train_batch_end(trainer, None, None, None, 0)
    assert watch.seconds == 6.0
