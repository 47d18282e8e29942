"""The record of what a run was fed, against slow references and planted faults."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch

from dflash.data.collate import BlockSampler
from dflash.data.order import StepOrder
from dflash.training import init as initial
from dflash.training import run as module
from dflash.training.datamodule import StepBatches
from dflash.training.fed import FeedRecord, gathered, row_hashes
from tests.decoding.toys import Rows
from tests.training.toys import SHAPES, answers, features, recipe, switches, toy, train

KINDS = ("order_hash", "anchor_hash", "feature_hash", "init_hash")


@pytest.fixture(scope="module")
def target():
    return toy()


@pytest.fixture(scope="module")
def rollouts(target):
    return answers(target, SHAPES)


@pytest.fixture(scope="module")
def honest(target, rollouts, tmp_path_factory):
    return train(tmp_path_factory.mktemp("honest"), target, rollouts, recipe())


def differing(result, other) -> set[str]:
    return {kind for kind in KINDS if getattr(result, kind) != getattr(other, kind)}


def short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def test_order_and_anchors_are_those_of_the_pure_functions(honest, rollouts):
    config = recipe()
    order = StepOrder([len(row.token_ids) for row in rollouts], config.sequences, 0)
    sampler = BlockSampler(config.anchors, 4, config.anchors_per_sequence, 0)
    fed = chosen = ""
    for step in range(config.steps):
        rows = order.rows(step)
        ids = [short(rollouts[row].token_ids.astype("int64").tobytes()) for row in rows]
        starts = [short(sampler.anchors(rollouts[row], step, row).tobytes()) for row in rows]
        fed = short("/".join([fed, *ids]).encode())
        chosen = short("/".join([chosen, *starts]).encode())
    assert (honest.order_hash, honest.anchor_hash) == (fed, chosen)


@pytest.mark.parametrize("given", [{"micro_batch": 1}, {"micro_batch": 3}, {"lr": 1.0}])
def test_what_does_not_change_the_data_changes_no_hash(honest, target, rollouts, tmp_path, given):
    assert differing(honest, train(tmp_path, target, rollouts, recipe(**given))) == set()


def test_another_order_is_seen(honest, target, rollouts, tmp_path, monkeypatch):
    rows = StepOrder.rows
    monkeypatch.setattr(StepOrder, "rows", lambda self, step: rows(self, step)[::-1])
    assert "order_hash" in differing(honest, train(tmp_path, target, rollouts))


def test_an_equal_order_of_other_answers_is_seen(honest, target, rollouts, tmp_path):
    changed = rollouts[0].answer_ids.copy()
    changed[0] = (changed[0] + 1) % 20
    other = [replace(rollouts[0], answer_ids=changed), *rollouts[1:]]
    rows = features(target, rollouts)
    assert differing(honest, train(tmp_path, target, other, rows=rows)) == {"order_hash"}


def test_other_anchors_are_seen(honest, target, rollouts, tmp_path, monkeypatch):
    draw = BlockSampler.anchors
    monkeypatch.setattr(
        BlockSampler, "anchors", lambda self, rollout, step, row: draw(self, rollout, step, row + 1)
    )
    assert differing(honest, train(tmp_path, target, rollouts)) == {"anchor_hash"}


def test_features_of_a_neighbour_are_seen(honest, target, rollouts, tmp_path):
    """A source that is a position late, as an index that is off by one makes it."""
    right = features(target, rollouts)
    late = Rows([torch.roll(row, 1, dims=0) for row in right.rows])
    assert differing(honest, train(tmp_path, target, rollouts, rows=late)) == {"feature_hash"}


def test_sampled_positions_cover_a_sequence_in_time(rollouts):
    """A fault at a single position is found once its step comes."""
    rows = [torch.zeros(len(row.token_ids), 4) for row in rollouts]
    faulty = [row.clone() for row in rows]
    faulty[2][7, 1] = 1.0
    config = recipe(steps=40)
    pairs = [StepBatches(rollouts, Rows(part), config, 4, 0, 40) for part in (rows, faulty)]
    assert any(
        row_hashes(pairs[0][step][0], step) != row_hashes(pairs[1][step][0], step)
        for step in range(40)
    )


def test_no_features_no_hash(target, rollouts, tmp_path):
    chosen = switches(kv={"fusion": "none"})
    result = module.train_drafter(
        recipe(), chosen, target, rollouts, None, 0, tmp_path, progress=False
    )
    assert result.feature_hash == ""


def test_starting_values_that_shift_with_the_modules_are_seen(
    honest, target, rollouts, tmp_path, monkeypatch
):
    """One generator for all parameters, the classical fault: a module less shifts the others."""
    monkeypatch.setattr(initial, "named_normal", lambda name, shape, seed: torch.randn(shape))
    results = []
    for name, given in (("control", {}), ("deeper", {"num_layers": 2})):
        torch.manual_seed(0)
        results.append(train(tmp_path / name, target, rollouts, **given))
    one, two = results
    assert one.init["fc.weight"] != two.init["fc.weight"]
    assert one.init_hash != honest.init_hash
    assert one.order_hash == two.order_hash == honest.order_hash


def test_the_starting_values_are_those_before_the_first_step(
    honest, target, rollouts, tmp_path, monkeypatch
):
    build = module.build_drafter

    def other(*given):
        drafter = build(*given)
        drafter.norm.weight.data.mul_(2)
        return drafter

    monkeypatch.setattr(module, "build_drafter", other)
    result = train(tmp_path, target, rollouts)
    assert {n for n in result.init if result.init[n] != honest.init[n]} == {"norm.weight"}


def test_a_resumed_run_reports_the_start_of_its_first_part(tmp_path):
    record = FeedRecord(tmp_path / "fed.json")
    state = {"chain": [["order", "anchor", "feature"]]}
    record.init = {"fc.weight": "1:b"}
    record.load_state_dict(state | {"init": {"fc.weight": "1:a"}})
    assert record.state_dict()["init"] == {"fc.weight": "1:a"}


def test_processes_are_put_together_in_the_order_of_the_step(monkeypatch):
    def gather(parts, rows):
        parts[:] = [["a", "c", "e"], ["b", "d"]]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    assert gathered([], 2) == ["a", "b", "c", "d", "e"]
