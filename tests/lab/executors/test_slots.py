from __future__ import annotations

import pytest

from dflash.lab.executors.slots import Slot, divide, gpus_here
from dflash.model.errors import UserError


@pytest.mark.parametrize(
    ("cores", "devices", "workers", "per_job", "expected"),
    [
        (8, "", 1, 1, [Slot(8)]),
        (8, "", 3, 1, [Slot(2)] * 3),
        (8, "", 2, 2, [Slot(4)] * 2),
        (2, "", 2, 1, [Slot(1)] * 2),
        (8, "0123", None, 1, [Slot(2, (name,)) for name in "0123"]),
        (8, "0123", 2, 1, [Slot(4, ("0",)), Slot(4, ("1",))]),
        (8, "0123", None, 2, [Slot(4, ("0", "1")), Slot(4, ("2", "3"))]),
        (8, "012", None, 2, [Slot(8, ("0", "1"))]),
        (2, "0123", None, 1, [Slot(1, (name,)) for name in "0123"]),
    ],
)
def test_a_machine_is_divided(cores, devices, workers, per_job, expected):
    assert divide(cores, list(devices), workers, per_job) == expected


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("devices", ["", "01", "012345"])
def test_shares_never_exceed_what_there_is(cores, devices):
    for workers in (None, 1, 2, 5):
        for per_job in (1, 2, 3):
            try:
                slots = divide(cores, list(devices), workers, per_job)
            except UserError:
                continue
            used = [name for slot in slots for name in slot.devices]
            assert len(used) == len(set(used))
            assert set(used) <= set(devices)
            assert all(len(slot.devices) == (per_job if devices else 0) for slot in slots)
            if not devices:
                assert sum(slot.threads for slot in slots) <= cores


@pytest.mark.parametrize(
    ("devices", "workers", "per_job", "message"),
    [
        ("", 3, 1, r"executor\.workers=3 is not valid; allowed: at most 2 \(2 cores here\)"),
        ("01", 3, 1, r"executor\.workers=3 is not valid; allowed: at most 2 \(2 GPUs here\)"),
        ("01", None, 3, r"train\.devices=3 is not valid; allowed: at most 2 \(GPUs here\)"),
    ],
)
def test_more_than_there_is_is_refused(devices, workers, per_job, message):
    with pytest.raises(UserError, match=message):
        divide(2, list(devices), workers, per_job)


def test_the_users_own_limits_are_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # a list, one number per level of nesting
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)  # which is what torch makes of it
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-ab")
    assert Slot(8, ("0",)).environment() == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert Slot(1).environment() == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert gpus_here(2) == ["3", "GPU-ab"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpus_here(2) == ["0", "1"]
