"""One cell on two devices, which are processes of a CPU (gloo)."""

from __future__ import annotations

import threading
import time

import psutil
import pytest
import torch
from safetensors.torch import load_file

from dflash.lab.config import compose_config
from dflash.lab.pipeline import check_cell, train_cell
from dflash.lab.stages import nodes
from dflash.lab.stages.ranks import ERROR, WORK, check_devices_here, check_ranks
from dflash.lab.stages.target import target_info
from dflash.lab.stages.train import Trained
from dflash.model.errors import UserError
from tests.lab.executors.conftest import forked

STEPS = ("train.steps=4", "train.sequences=4")


@pytest.fixture
def trained(lab, small, small_overrides):
    """Train a drafter in the lab."""

    def train(*overrides: str):
        config = compose_config([*small_overrides, *STEPS, *overrides])
        return train_cell(lab, config, target_info(lab, config.target), seed=0)

    return train


def assert_same_drafter(one: Trained, two: Trained) -> None:
    """Equal but for the order in which numbers were added up."""
    weights = [load_file(each.checkpoint / "model.safetensors") for each in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-6, msg=name)
    same = ("tokens", "steps", "parameters", "device", "path", "order_hash", "init_hash")
    assert {key: one.facts[key] for key in same} == {key: two.facts[key] for key in same}
    assert two.facts["final_loss"] == pytest.approx(one.facts["final_loss"], rel=1e-5)
    assert two.facts["moved"] == pytest.approx(one.facts["moved"], rel=1e-2)


@pytest.mark.parametrize(
    "options",
    [
        ("ddp",),
        ("fsdp", "drafter.mask_embedding=learned", "drafter.num_layers=2"),
    ],
)
def test_two_ranks_train_the_drafter_of_one_process(trained, lab, options):
    strategy, *switches = options
    spread = ("train.devices=2", f"train.strategy={strategy}", "train.micro_batch=1")
    one, two = trained(*switches), trained(*switches, *spread)
    assert one.name != two.name
    assert_same_drafter(one, two)
    assert not {WORK, ERROR} & {path.name for path in two.checkpoint.parent.iterdir()}
    assert lab.store.entries("train") == [one.checkpoint.parent, two.checkpoint.parent]


def test_two_nodes_train_the_drafter_of_one_process(trained, tmp_path, monkeypatch):
    """Both nodes are this machine; the second answers in a thread."""
    monkeypatch.setenv(nodes.CALLS, str(tmp_path))
    monkeypatch.setattr(nodes.socket, "gethostname", lambda: "localhost")
    other = threading.Thread(target=nodes.answer_calls, args=(tmp_path, 1))
    other.start()
    try:
        two = trained("train.nodes=2", "train.strategy=ddp")
    finally:
        (tmp_path / nodes.ENDED).touch()
        other.join()
    assert_same_drafter(trained(), two)


def test_nodes_need_somebody_who_starts_the_others(
    lab, small, small_overrides, trained, monkeypatch
):
    monkeypatch.delenv(nodes.CALLS, raising=False)
    config = compose_config([*small_overrides, "train.nodes=2"])
    with pytest.raises(UserError, match=r"train\.nodes=2 is not valid; allowed: 1, or executor"):
        check_cell(config, target_info(lab, config.target))
    with pytest.raises(UserError, match=r"train\.nodes=2"):
        trained("train.nodes=2")


def test_ranks_end_with_the_command_and_shards_resume(trained, lab, small_overrides):
    """``kill -9`` of the command that started them."""
    spread = ("train.devices=2", "train.strategy=fsdp")
    steps = ("train.steps=20", "train.checkpoint_every=1")
    words = ["train", *small_overrides, *STEPS, *steps, *spread, "seeds=[0]"]
    process = forked([*words, "--store", str(lab.store.root)])
    while not list(lab.store.root.glob("train-*.partial/last.ckpt")):
        assert process.is_alive()
        time.sleep(0.01)
    ranks = psutil.Process(process.pid).children(recursive=True)
    assert len(ranks) >= 2
    process.kill()
    process.join()
    assert psutil.wait_procs(ranks, timeout=20)[1] == []
    assert lab.store.entries("train") == []
    two, one = trained(*steps, *spread), trained(*steps)
    assert_same_drafter(one, two)


def test_what_a_rank_says_is_the_error(trained, lab):
    with pytest.raises(RuntimeError, match=r"UserError: train\.max_length=1 is not valid"):
        trained("train.devices=2", "train.max_length=1")
    assert lab.store.entries("train") == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.strategy=ddp_fork", r"train\.strategy='ddp_fork' is not valid; allowed: auto, ddp"),
        ("target.device=cuda:0", r"target\.device='cuda:0' is not valid"),
    ],
)
def test_impossible_combinations_are_one_line(
    lab, small, small_overrides, override, message, monkeypatch
):
    config = compose_config([*small_overrides, "train.devices=2"])
    info = target_info(lab, config.target)
    check_cell(config, info)
    if "cuda" in override:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for kind in ("local", "slurm"):
        words = ("train.devices=2", override, f"executor.kind={kind}")
        with pytest.raises(UserError, match=message):
            check_cell(compose_config([*small_overrides, *words]), info)


def test_sharded_ranks_need_equal_shares(small, small_overrides):
    options = ["train.devices=2", "train.sequences=3", "train.strategy=fsdp"]
    with pytest.raises(UserError, match=r"train\.sequences=3 is not valid; allowed: a multiple"):
        check_ranks(compose_config([*small_overrides, *options]))


def test_more_ranks_than_gpus_are_refused(small, small_overrides, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    config = compose_config([*small_overrides, "train.devices=2", "target.device=auto"])
    check_ranks(config)
    with pytest.raises(UserError, match=r"train\.devices=2 is not valid; allowed: at most 1"):
        check_devices_here(config)
