from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from dflash.training import run as module
from dflash.training.module import DrafterTraining
from tests.training.child import material, resumable
from tests.training.toys import assert_same, train, weights


class Killed(BaseException):
    """Nothing catches this."""


@pytest.fixture(scope="module")
def stuff():
    return material()


@pytest.fixture(scope="module")
def whole(stuff, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    return directory, train(directory, *stuff, resumable())


def die_at(patch, step: int, when: str) -> list[int]:
    """Die in the middle of an optimizer step, or after it; returns the steps that were begun."""
    begun: list[int] = []
    training_step = DrafterTraining.training_step

    def mortal(self, batch, batch_idx):
        begun.append(self.global_step)
        if len(begun) and begun[-1] == step and when == "before":
            raise Killed
        training_step(self, batch, batch_idx)
        if begun[-1] == step and when == "after":
            raise Killed

    patch.setattr(DrafterTraining, "training_step", mortal)
    return begun


def logged(directory: Path) -> dict[int, float]:
    """Step -> loss over all parts of a run; what a later part says counts."""
    losses: dict[int, float] = {}
    for path in sorted(directory.glob("log-*/metrics.csv")):
        with path.open() as file:
            losses |= {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}
    return losses


@pytest.mark.parametrize(
    ("step", "when", "resumes_at"),
    [(0, "before", 0), (2, "after", 0), (3, "before", 3), (7, "after", 6), (9, "before", 9)],
)
def test_any_interruption_leaves_no_trace(
    stuff, whole, tmp_path, monkeypatch, step, when, resumes_at
):
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, step, when)
        with pytest.raises(Killed):
            train(tmp_path, *stuff, resumable())
    begun = die_at(monkeypatch, -1, "never")
    resumed = train(tmp_path, *stuff, resumable())
    assert begun == list(range(resumes_at, 10))
    directory, uninterrupted = whole
    assert_same(weights(resumed), weights(uninterrupted))
    assert (resumed.tokens, resumed.final_loss) == (uninterrupted.tokens, uninterrupted.final_loss)
    for kind in ("order_hash", "anchor_hash", "feature_hash", "init_hash", "init"):
        assert getattr(resumed, kind) == getattr(uninterrupted, kind)
    assert resumed.moved == uninterrupted.moved
    assert logged(tmp_path) == logged(directory)
    assert sorted(logged(tmp_path)) == list(range(10))
    # optimizer and schedule too, as the last resume point has them
    ours, theirs = (
        torch.load(place / "last.ckpt", weights_only=True) for place in (tmp_path, directory)
    )
    assert ours["lr_schedulers"] == theirs["lr_schedulers"]
    for index, state in ours["optimizer_states"][0]["state"].items():
        assert_same(state, theirs["optimizer_states"][0]["state"][index])


def test_killed_twice(stuff, whole, tmp_path):
    for step in (4, 8):
        with pytest.MonkeyPatch.context() as patch:
            die_at(patch, step, "before")
            with pytest.raises(Killed):
                train(tmp_path, *stuff, resumable())
    resumed = train(tmp_path, *stuff, resumable())
    assert_same(weights(resumed), weights(whole[1]))
    assert resumed.tokens == whole[1].tokens


@pytest.mark.parametrize("steps", [9, 10])
def test_killed_while_the_drafter_is_written(stuff, tmp_path, monkeypatch, steps):
    """The resume point may be the very last step (9 of 9): nothing is left to train."""
    config = resumable()
    config = type(config)(**{**vars(config), "steps": steps})
    expected = train(tmp_path / "whole", *stuff, config)

    def killed(drafter, state, path):
        drafter.save_pretrained(path.with_name(f".{path.name}"))
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_save", killed)
        with pytest.raises(Killed):
            train(tmp_path / "killed", *stuff, config)
    begun = die_at(monkeypatch, -1, "never")
    resumed = train(tmp_path / "killed", *stuff, config)
    assert begun == list(range(9, steps))
    assert_same(weights(resumed), weights(expected))
    assert (resumed.tokens, resumed.final_loss) == (expected.tokens, expected.final_loss)


def test_a_seed_decides_everything(stuff, whole, tmp_path):
    torch.manual_seed(1234)
    again = train(tmp_path / "again", *stuff, resumable())
    other = train(tmp_path / "other", *stuff, resumable(), seed=1)
    assert_same(weights(again), weights(whole[1]))
    assert not torch.equal(weights(other)["fc.weight"], weights(whole[1])["fc.weight"])
