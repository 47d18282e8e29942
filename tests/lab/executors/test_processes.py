"""Worker processes, by workers that do nothing; ``test_grid.py`` has real ones."""

from __future__ import annotations

import os
import sys
import time

import pytest

from dflash.lab.executors import processes
from dflash.lab.executors.job import Job, Result
from dflash.lab.executors.processes import Processes

# Its environment is its result; it dies as often as a label says, or waits for ever.
STUB = """
import json, os, sys
from pathlib import Path
store = Path(sys.argv[1])
results = os.fdopen(int(sys.argv[2]), "w")
for line in sys.stdin:
    label = json.loads(line)["label"]
    attempts = store / f"{label}.attempts"
    attempts.write_text(attempts.read_text() + "x" if attempts.exists() else "x")
    word, _, times = label.partition(" ")
    if word == "dies" and len(attempts.read_text()) <= int(times):
        os.kill(os.getpid(), 9)
    if word == "hangs":
        (store / "pid").write_text(str(os.getpid()))
        continue
    print("at work", flush=True)
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    entries = {name: os.environ.get(name, "") for name in names} | {"pid": str(os.getpid())}
    print(json.dumps({"entries": entries}), file=results, flush=True)
"""


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    monkeypatch.setattr(processes, "WORKER", (sys.executable, "-c", STUB))
    monkeypatch.setattr(processes, "cores_here", lambda: 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)


def job(label: str, devices: int = 1, seed: int | None = 0) -> Job:
    return Job(label, {"train": {"devices": devices}}, seed, f"claim-{label}")


def test_every_worker_sees_its_own_gpu(lab):
    executor = Processes(lab, ["0", "1", "5"], None, retries=0)
    results = dict_of(executor.run([job(f"j{index}") for index in range(6)]))
    seen = {result.entries["CUDA_VISIBLE_DEVICES"] for result in results.values()}
    assert seen == {"0", "1", "5"}
    assert {result.entries["OMP_NUM_THREADS"] for result in results.values()} == {"1"}
    assert "[j0] at work" in lab.said


def test_cells_that_span_devices_get_them_and_shared_inputs_the_machine(lab):
    executor = Processes(lab, ["0", "1", "2", "3"], None, retries=0)
    pairs = dict_of(executor.run([job(f"j{index}", devices=2) for index in range(4)]))
    assert {r.entries["CUDA_VISIBLE_DEVICES"] for r in pairs.values()} == {"0,1", "2,3"}
    (shared,) = dict_of(executor.run([job("all", seed=None)])).values()
    assert shared.entries["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert shared.entries["OMP_NUM_THREADS"] == "4"


def test_a_worker_does_one_job_after_the_other(lab):
    executor = Processes(lab, [], 2, retries=0)
    results = dict_of(executor.run([job(f"j{index}") for index in range(9)]))
    assert len(results) == 9
    assert len({result.entries["pid"] for result in results.values()}) <= 2
    assert list(executor.run([])) == []


def test_a_lost_worker_is_replaced_and_at_last_given_up(lab):
    executor = Processes(lab, [], 2, retries=2)
    results = dict_of(executor.run([job("dies 2"), job("dies 9"), job("lives")]))
    assert results["dies 2"].entries is not None
    assert results["lives"].entries["OMP_NUM_THREADS"] == "2"
    assert results["dies 9"] == Result(None, "worker lost 3 times, at last: exit status -9")
    assert (lab.store.root / "dies 9.attempts").read_text() == "xxx"
    assert (lab.store.root / "lives.attempts").read_text() == "x"


def test_workers_end_with_the_run(lab):
    executor = Processes(lab, [], 2, retries=5)
    run = executor.run([job("hangs"), job("lives")])
    next(run)
    pid = lab.store.root / "pid"
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.01)
    run.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert (lab.store.root / "hangs.attempts").read_text() == "x"


def test_what_another_process_works_on_comes_last(lab):
    claim = lab.store.claim("claim-taken")
    assert lab.store.claim("claim-taken") is None
    run = Processes(lab, [], 1, retries=0).run([job("taken"), job("a"), job("b")])
    assert [next(run)[0].label for _ in range(2)] == ["a", "b"]
    while "taken: waiting for another process that works on it" not in lab.said:
        time.sleep(0.01)
    claim.close()
    assert next(run)[0].label == "taken"


def dict_of(results) -> dict[str, Result]:
    return {job.label: result for job, result in results}
