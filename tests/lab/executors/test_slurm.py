"""The grid as submitit's local jobs, and as jobs of a Slurm whose commands are stubs."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from dflash.lab.executors.config import ExecutorConfig, SlurmConfig
from dflash.lab.executors.job import Job
from dflash.model.errors import UserError
from tests.lab.executors.conftest import run
from tests.lab.executors.grid import assert_built_once, tables

submitit = pytest.importorskip(
    "submitit", reason="submitit is not installed (pip install -e '.[slurm]')"
)
from dflash.lab.executors import slurm  # noqa: E402

# sbatch starts the job at once and says its number; a job in $STUB/lost never starts.
SBATCH = """
import os, re, shlex, subprocess, sys
from pathlib import Path
stub = Path(os.environ["STUB"])
text = Path(sys.argv[1]).read_text()
number = str(1000 + len(list(stub.glob("job*"))))
(stub / f"job{number}").write_text(text)
command = shlex.split(text.strip().splitlines()[-1])
python = command.index(sys.executable)
if not (stub / "lost").exists():
    env = os.environ | {"SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1",
                        "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
                        "SLURM_JOB_NODELIST": "here"}
    log = (stub / f"log{number}").open("w")
    command[-1] = command[-1].replace("%j", number)
    subprocess.Popen(command[python:], env=env, stdout=log, stderr=log)
else:
    (stub / "lost").unlink()
    (stub / f"dead{number}").touch()
print("Submitted batch job", number)
"""
SACCT = """
import os, re, sys
from pathlib import Path
print("JobID|State|NodeList")
for number in (word for word in sys.argv if word.isdigit()):
    dead = (Path(os.environ["STUB"]) / f"dead{number}").exists()
    print(f"{number}|{'NODE_FAIL' if dead else 'RUNNING'}|here")
"""
SCANCEL = (
    "import os, sys; open(os.path.join(os.environ['STUB'], 'cancelled'), 'a').write(sys.argv[1])"
)


@pytest.fixture
def stub(tmp_path, monkeypatch) -> Path:
    """A folder with Slurm's commands, on the path."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    bodies = {"sbatch": SBATCH, "sacct": SACCT, "scancel": SCANCEL, "srun": ""}
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
    monkeypatch.setattr(slurm, "POLL", 0.05)
    options = ("executor.kind=slurm", "executor.slurm.cluster=local", "executor.workers=2")
    lab, finished = run(tmp_path, *options)
    assert finished.failed == []
    assert tables(finished.directory) == whole
    assert_built_once(lab.store.journal())


def test_a_cell_on_slurm_survives_a_lost_node(stub, tmp_path):
    (stub / "lost").touch()
    options = ("executor.kind=slurm", "executor.slurm.partition=gpu", "seeds=[0]")
    more = ("executor.slurm.gpus=2", "executor.slurm.extra={account: me}", "executor.workers=1")
    lab, finished = run(tmp_path, *options, *more)
    assert finished.failed == []
    assert_built_once(lab.store.journal())
    assert any("worker lost (job 1000, NODE_FAIL" in text for text in lab.said)
    asked = (stub / "job1001").read_text()
    for line in ("partition=gpu", "gpus-per-node=2", "account=me", "time=240", "mem=64GB"):
        assert f"#SBATCH --{line}" in asked


def test_what_is_queued_is_cancelled_with_the_run(stub, lab, monkeypatch):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm.time, "sleep", interrupted)
    monkeypatch.setattr(slurm.Work, "__call__", lambda self: None)
    with pytest.raises(KeyboardInterrupt):
        next(slurm.Slurm(lab, ExecutorConfig("slurm")).run([job()]))
    assert (stub / "cancelled").read_text() == "1000"


def job(devices: int = 1) -> Job:
    return Job("j", {"train": {"devices": devices}}, 0, "claim")


def test_without_slurm_it_is_one_line(lab, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"executor\.kind='slurm' is not valid"):
        slurm.Slurm(lab, ExecutorConfig("slurm"))


def test_a_cell_needs_its_devices(lab):
    executor = slurm.Slurm(lab, ExecutorConfig("slurm", slurm=SlurmConfig("local", gpus=1)))
    with pytest.raises(UserError, match=r"executor\.slurm\.gpus=1"):
        executor.run([job(devices=2)])
