"""The grid on a Ray cluster of two workers on this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dflash.lab.executors.config import ExecutorConfig, RayConfig
from dflash.lab.executors.job import Job, Result
from dflash.model.errors import UserError
from tests.lab.executors.conftest import run
from tests.lab.executors.grid import assert_built_once, tables

ray = pytest.importorskip("ray", reason="needs ray (pip install -e '.[ray]')")
from dflash.lab.executors import ray_cluster  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20)
        yield
        ray.shutdown()


def test_the_grid_on_ray_gives_the_same_tables(whole, tmp_path):
    lab, finished = run(tmp_path, "executor.kind=ray")
    assert finished.failed == []
    assert tables(finished.directory) == whole
    assert_built_once(lab.store.journal())


def test_a_task_takes_its_devices(lab, monkeypatch):
    options = []

    class Task:
        def options(self, **given):
            options.append(given)
            return self

        def remote(self, *arguments):
            return arguments

    monkeypatch.setattr(ray_cluster, "remote", Task())
    job = Job("j", {"train": {"devices": 2}}, 0, "c")
    for has_gpus, asked in ((True, None), (False, None), (True, 1)):
        cluster = ray_cluster.RayCluster(lab, ExecutorConfig(ray=RayConfig(asked, 3), retries=5))
        cluster.has_gpus = has_gpus
        cluster.submit(job)
    assert [given["num_gpus"] for given in options] == [2, 0, 1]
    assert {(given["num_cpus"], given["max_retries"]) for given in options} == {(3, 5)}


@ray.remote
def dies(times: int, note: str) -> dict[str, object]:
    """A task whose worker is killed that often."""
    place = Path(note)
    place.write_text(place.read_text() + "x" if place.exists() else "x")
    if len(place.read_text()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"entries": {}}


@pytest.mark.parametrize(("times", "survives"), [(1, True), (9, False)])
def test_a_lost_worker_is_replaced_and_at_last_given_up(lab, tmp_path, times, survives):
    cluster = ray_cluster.RayCluster(lab, ExecutorConfig(retries=1))
    note = tmp_path / "note"
    handle = dies.options(max_retries=1).remote(times, str(note))
    result = cluster.result(cluster.wait([handle]))
    assert note.read_text() == "xx"
    assert (result.entries == {}) if survives else ("died" in result.lower())


@ray.remote
def fails() -> dict[str, object]:
    """A task that cannot even begin its job."""
    raise ImportError("no module\nhere")


def test_an_error_inside_a_task_is_its_result(lab):
    cluster = ray_cluster.RayCluster(lab, ExecutorConfig(retries=1))
    result = cluster.result(cluster.wait([fails.remote()]))
    assert result == Result(None, "ImportError: no module here")


def test_an_address_where_nothing_answers_is_one_line(lab, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refuse(**given):
        raise ConnectionError("no cluster\nthere")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    with pytest.raises(UserError, match="RAY_ADDRESS='nowhere:1' is not valid"):
        ray_cluster.RayCluster(lab, ExecutorConfig())
