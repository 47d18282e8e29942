"""A quota is refused in one line, before anything runs."""

from __future__ import annotations

import pytest

from dflash.cli import main
from dflash.lab.experiment import load_experiment
from dflash.lab.plan.bill import Bill
from dflash.lab.plan.quota import Quota, check_quota, hold_to_quota
from dflash.model.errors import UserError

BILL = Bill("mine", tokens=1e6, steps=10, disk=3e9, gpu_hours=5.0)


def test_a_quota_is_read_from_words():
    assert Quota.parse("gpu_hours=10 disk_gb=200") == Quota(10.0, 200.0)
    assert Quota.parse("disk_gb=1,tokens=2e9") == Quota(disk_gb=1.0, tokens=2e9)
    assert Quota.parse("") == Quota()


@pytest.mark.parametrize(
    "text", ["gpu_hours", "hours=3", "disk_gb=much", "disk_gb=-1", "disk_gb=1 disk_gb=2", "tokens="]
)
def test_a_bad_quota_is_one_line(text):
    with pytest.raises(UserError, match="quota") as caught:
        Quota.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gpu_hours", "disk_gb", "tokens"])
def test_each_limit_holds(name):
    needed = {"gpu_hours": 5.0, "disk_gb": 3.0, "tokens": 1e6}[name]
    check_quota(Quota(**{name: needed}), BILL)
    with pytest.raises(UserError, match=f"mine needs {name}="):
        check_quota(Quota(**{name: needed * 0.99}), BILL)


def test_hours_that_nobody_knows_are_refused():
    unknown = Bill("mine", 1e6, 10, 3e9, gpu_hours=None)
    check_quota(Quota(disk_gb=4), unknown)
    with pytest.raises(UserError, match="no speed is known"):
        check_quota(Quota(gpu_hours=1), unknown)


def test_cost_prints_the_bill_and_then_refuses(small, small_overrides, tmp_path, capsys):
    command = ["cost", small, *small_overrides, "--store", str(tmp_path / "store")]
    assert main([*command, "--quota", "disk_gb=1"]) == 0
    capsys.readouterr()
    assert main([*command, "--quota", "disk_gb=0.00001"]) == 2
    output = capsys.readouterr()
    assert "BY STAGE" in output.out
    assert output.err.count("\n") == 1
    assert "beyond the quota" in output.err
    assert main([*command, "--quota", "gpu_hours=1"]) == 2
    capsys.readouterr()
    assert main([*command, "--quota", "gpu_hours=1 throughput=1e12"]) == 0


def test_ablate_honours_the_environment(small, small_overrides, tmp_path, capsys, monkeypatch):
    """Nothing is loaded (see conftest) when the quota is too small; hours are of GPUs only."""
    places = ["--store", str(tmp_path / "store"), "--results", str(tmp_path / "results")]
    monkeypatch.setenv("DFLASH_QUOTA", "disk_gb=0.00001")
    assert main(["ablate", small, *small_overrides, *places]) == 2
    assert "beyond the quota" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
    monkeypatch.setenv("DFLASH_QUOTA", "gpu_hours=0 disk_gb=1")
    with pytest.raises(AssertionError, match="loaded a target"):
        main(["ablate", small, *small_overrides, *places])


@pytest.mark.parametrize("kind", ["slurm", "ray"])
def test_hours_count_where_a_cluster_has_the_gpus(lab, small, small_overrides, kind):
    """The machine that submits needs no GPU to spend some."""
    experiment = load_experiment(small, [*small_overrides, f"executor.kind={kind}"])
    with pytest.raises(UserError, match="gpu_hours=1 cannot be checked: no speed is known"):
        hold_to_quota(lab, experiment, Quota(gpu_hours=1))
    with pytest.raises(UserError, match="mine needs gpu_hours="):
        hold_to_quota(lab, experiment, Quota(gpu_hours=1e-9, throughput=1e9))
    local = load_experiment(small, small_overrides)
    hold_to_quota(lab, local, Quota(gpu_hours=1e-9, throughput=1e9))
