"""The grid as submitit's local jobs, and as jobs of a Slurm whose commands are stubs."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from dflash.lab.executors.config import ExecutorConfig, SlurmConfig
from dflash.lab.executors.job import Job, Result
from dflash.lab.stages import nodes
from dflash.model.errors import UserError
from dflash.training.config import TrainConfig
from tests.lab.executors.conftest import run
from tests.lab.executors.grid import assert_built_once, of_seed, tables

submitit = pytest.importorskip(
    "submitit", reason="submitit is not installed (pip install -e '.[slurm]')"
)
import cloudpickle  # noqa: E402

from dflash.lab.executors import slurm  # noqa: E402

# sbatch starts the job at once and says its number; if there is a file "lost", the node fails.
SBATCH = """
import os, shutil, subprocess, sys
from pathlib import Path
stub = Path(os.environ["STUB"])
number = str(1000 + len(list(stub.glob("job*"))))
script = shutil.copy(sys.argv[1], stub / f"job{number}")
if (stub / "lost").exists():
    (stub / "lost").unlink()
    (stub / f"NODE_FAIL{number}").touch()
else:
    names = ("JOB_ID", "NTASKS", "JOB_NUM_NODES", "NODEID", "PROCID", "LOCALID")
    slurm = dict(zip((f"SLURM_{name}" for name in names), (number, "1", "1", "0", "0", "0")))
    body = f"bash {script}; touch {stub}/COMPLETED{number}"
    log = (stub / f"log{number}").open("w")
    subprocess.Popen(["bash", "-c", body], env=os.environ | slurm, stdout=log, stderr=log)
print("Submitted batch job", number)
"""
SRUN = """
import os, sys
command = sys.argv[sys.argv.index(sys.executable):]
command[-1] = command[-1].replace("%j", os.environ["SLURM_JOB_ID"])
os.execv(command[0], command)
"""
SACCT = """
import os, sys
from pathlib import Path
print("JobID|State|NodeList")
for number in (word for word in sys.argv if word.isdigit()):
    (state, *_) = [path.name[: -len(number)]
                   for path in Path(os.environ["STUB"]).glob(f"[A-Z]*{number}")] or ["RUNNING"]
    print(f"{number}|{state}|here")
"""
SCANCEL = """
import os, sys
from pathlib import Path
(Path(os.environ["STUB"]) / "cancelled").write_text(sys.argv[1])
"""


@pytest.fixture
def stub(tmp_path, monkeypatch) -> Path:
    """A folder with Slurm's commands, on the path."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    bodies = {"sbatch": SBATCH, "sacct": SACCT, "scancel": SCANCEL, "srun": SRUN}
    for name, body in bodies.items():
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STUB", str(folder))
    monkeypatch.setattr(slurm, "POLL", 0.05)
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 1)
    submitit.SlurmJob.watcher.clear()
    return folder


def test_the_grid_on_submitit_gives_the_same_tables(whole, tmp_path, monkeypatch):
    """One seed of it: every job starts a process of its own."""
    monkeypatch.setattr(slurm, "POLL", 0.05)
    options = ("executor.kind=slurm", "executor.slurm.cluster=local", "executor.workers=2")
    lab, finished = run(tmp_path, *options, "seeds=[0]")
    assert finished.failed == []
    assert tables(finished.directory) == of_seed(whole, 0)
    assert_built_once(lab.store.journal())


class Nothing:
    """Work without a target; it needs none of our modules where it runs."""

    def __call__(self) -> dict[str, object]:
        return {"entries": {}}


def test_a_job_on_a_lost_node_is_submitted_again(stub, lab, monkeypatch):
    (stub / "lost").touch()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(slurm, "Work", lambda *given: Nothing())
    asked = SlurmConfig(partition="gpu", gpus=2, extra={"account": "me"})
    executor = slurm.Slurm(lab, ExecutorConfig("slurm", slurm=asked))
    assert list(executor.run([job()])) == [(job(), Result({}))]
    assert any("worker lost (job 1000, NODE_FAIL" in text for text in lab.said)
    script = (stub / "job1001").read_text()
    for line in (
        "nodes=1",
        "partition=gpu",
        "gpus-per-node=2",
        "account=me",
        "time=240",
        "mem=64GB",
    ):
        assert f"#SBATCH --{line}" in script


def test_a_job_asks_for_its_nodes_with_one_task_each(stub, lab, monkeypatch):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(slurm, "Work", lambda *given: Nothing())
    executor = slurm.Slurm(lab, ExecutorConfig("slurm", slurm=SlurmConfig(gpus=0)))
    for count, number in ((2, 1000), (1, 1001)):
        executor.submit(job(nodes=count))
        script = (stub / f"job{number}").read_text()
        assert f"#SBATCH --nodes={count}" in script
        assert "#SBATCH --ntasks-per-node=1" in script
        assert ("--kill-on-bad-exit=1" in script) is (count > 1)


def test_nodes_after_the_first_answer_until_it_has_ended(lab, monkeypatch):
    """Two tasks of one job, in threads: the first calls once, the second answers once."""
    begun = []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(nodes, "POLL", 0.01)
    monkeypatch.setattr(nodes, "run_agent", lambda command, devices: begun.append(command) or 0)
    work = slurm.Work(lab.store.root, job(devices=3, nodes=2), 1)
    lab.store.root.mkdir()

    def first(self) -> Result:
        asked = TrainConfig(devices=3, nodes=2)
        begun.append(nodes.call_nodes(asked, lab.store.root / "work.json"))
        return Result({"train": "train-x"})

    monkeypatch.setattr(slurm.Work, "perform", first)
    monkeypatch.setenv("SLURM_PROCID", "1")
    other = threading.Thread(target=work)
    other.start()
    time.sleep(0.1)
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert work() == Result({"train": "train-x"}).plain()
    other.join(timeout=10)
    assert not other.is_alive()
    ranks = [word for command in begun for word in command if "node-rank" in word]
    assert ranks == ["--node-rank=0", "--node-rank=1"]
    assert len({word for command in begun for word in command if "master" in word}) == 2
    assert nodes.CALLS not in os.environ


def test_what_is_queued_is_cancelled_with_the_run(stub, lab, monkeypatch):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm.time, "sleep", interrupted)
    monkeypatch.setattr(slurm.Work, "__call__", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        next(slurm.Slurm(lab, ExecutorConfig("slurm")).run([job()]))
    assert (stub / "cancelled").read_text() == "1000"


def job(devices: int = 1, nodes: int = 1) -> Job:
    return Job("j", {"train": {"devices": devices, "nodes": nodes}}, 0, "claim")


def test_without_slurm_it_is_one_line(lab, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"executor\.kind='slurm' is not valid"):
        slurm.Slurm(lab, ExecutorConfig("slurm"))


def test_a_cell_needs_its_devices(lab):
    executor = slurm.Slurm(lab, ExecutorConfig("slurm", slurm=SlurmConfig("local", gpus=1)))
    with pytest.raises(UserError, match=r"executor\.slurm\.gpus=1"):
        executor.run([job(devices=2)])
