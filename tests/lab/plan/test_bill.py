"""The bill against what a run on the tiny target really leaves and does (pitfalls T-COST1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dflash.cli import main
from dflash.lab.experiment import load_experiment
from dflash.lab.plan.bill import Speed, bill_of
from dflash.lab.plan.cost import cost_text
from dflash.lab.plan.data import Assumed
from dflash.lab.plan.entries import make_plan
from dflash.lab.plan.explain import explain_text
from dflash.lab.plan.rates import Rate, Stated, expected_rate, measured_rate
from dflash.lab.run import run_experiment
from dflash.lab.stages.common import read_json, write_json
from dflash.lab.stages.train import FACTS, Trained
from dflash.model.errors import UserError


@pytest.fixture
def finished(lab, small, small_overrides, tmp_path):
    """The experiment, run: three arms, one seed."""
    experiment = load_experiment(small, [*small_overrides, "seeds=[0]"])
    run_experiment(lab, experiment, tmp_path / "results")
    return experiment


@pytest.mark.usefixtures("weights")
def test_the_plan_of_a_finished_run_is_what_it_left(lab, finished):
    plan = make_plan(lab, finished)
    assert plan.known
    assert plan.missing == []
    assert bill_of(plan, None).disk == 0
    for entry in plan.entries:
        folder = lab.store.path(entry.key)
        if entry.key.stage == "features":
            assert entry.bytes == (folder / "features.bin").stat().st_size
        if entry.key.stage == "train":
            trained = Trained.of_entry(folder)
            size = sum(path.stat().st_size for path in trained.checkpoint.iterdir())
            assert entry.bytes == pytest.approx(size, rel=0.1)
            assert entry.steps == trained.facts["steps"]
    control = plan.cells[0]
    facts = Trained.of_entry(lab.store.entries("train")[0]).facts
    assert control.parameters == facts["parameters"]
    assert control.train.counted
    text = explain_text(lab, plan, None, 64)
    assert "to do: nothing" in text
    assert "counted in rollouts-" in " ".join(text.split())


@pytest.mark.usefixtures("weights")
def test_supervised_slots_of_a_long_run(lab, small, small_overrides, tmp_path):
    """Expected labels against those that training counted, over two passes."""
    longer = [*small_overrides, "train.steps=12", "seeds=[0]", "decode.prompts_per_bench=0"]
    experiment = load_experiment(small, longer)
    run_experiment(lab, experiment, tmp_path / "results")
    cell = make_plan(lab, experiment).cells[0]
    for entry in lab.store.entries("train"):
        tokens = Trained.of_entry(entry).facts["tokens"]
        assert cell.run_work.scored == pytest.approx(tokens, rel=0.1)


@pytest.mark.usefixtures("weights")
def test_a_speed_is_measured_where_a_run_was(lab, finished, small_overrides):
    cell = make_plan(lab, finished).cells[0]
    rate = measured_rate(lab.store, cell, lambda device: True)
    assert rate is not None
    seconds = [
        Trained.of_entry(entry).facts["train_seconds"] for entry in lab.store.entries("train")
    ]
    assert min(seconds) * 0.9 < cell.training_flops / rate.flops_per_second < max(seconds) * 1.1
    assert "3 training run(s) of the store on cpu" in rate.source
    assert measured_rate(lab.store, cell, lambda device: False) is None
    assert expected_rate(lab.store, cell) == rate


@pytest.mark.usefixtures("weights")
def test_a_rate_is_of_one_device_and_of_runs_that_shared_nothing(lab, finished):
    cell = make_plan(lab, finished).cells[0]
    alone = measured_rate(lab.store, cell, lambda device: True)
    for entry in lab.store.entries("train"):
        facts = read_json(entry / FACTS)
        assert facts["shared_pass"] is False
        facts["config"]["train"]["devices"] = 2
        write_json(entry / FACTS, facts)
    rate = measured_rate(lab.store, cell, lambda device: True)
    assert rate.flops_per_second == pytest.approx(alone.flops_per_second / 2)
    for entry in lab.store.entries("train"):
        write_json(entry / FACTS, read_json(entry / FACTS) | {"shared_pass": True})
    assert measured_rate(lab.store, cell, lambda device: True) is None


@pytest.mark.real_model
@pytest.mark.usefixtures("experiments")
def test_what_was_measured_elsewhere_is_of_one_target_on_a_processor(lab, small_overrides):
    data = [override for override in small_overrides if override.startswith("data.")]

    def expected(target: str, device: str) -> Rate | None:
        overrides = [f"target={target}", "target.device=cpu", *data]
        cell = make_plan(lab, load_experiment("no_qknorm", overrides)).cells[0]
        return expected_rate(lab.store, replace(cell, info=replace(cell.info, device=device)))

    rate = expected("smollm2_135m", "cpu x86_64 x2")
    assert rate is not None
    assert "measured elsewhere" in rate.source
    assert expected("smollm2_135m", "NVIDIA H200") is None
    assert expected("qwen3_0_6b", "cpu x86_64 x2") is None


def test_without_a_store_everything_is_missing(lab, small, small_overrides):
    plan = make_plan(lab, load_experiment(small, small_overrides))
    stages = [entry.key.stage for entry in plan.entries]
    assert plan.missing == list(plan.entries)
    assert {stage: stages.count(stage) for stage in stages} == {
        "rollouts": 2,
        "features": 2,
        "train": 6,
        "replay": 6,
        "autoregressive": 1,
        "decode": 6,
    }
    bill = bill_of(plan, Speed(Rate(1e9, "stated")))
    assert bill.gpu_hours == pytest.approx(sum(entry.flops for entry in plan.entries) / 3.6e12)
    assert bill.steps == 6 * 2


def test_online_features_are_paid_in_operations(lab, small, small_overrides):
    offline = make_plan(lab, load_experiment(small, small_overrides))
    online = make_plan(lab, load_experiment(small, [*small_overrides, "data.mode=online"]))
    assert bill_of(online, None).disk < bill_of(offline, None).disk
    one, other = online.cells[0], offline.cells[0]
    assert one.training_flops == other.training_flops + one.passes * one.feature_flops(
        one.sequences
    )


def test_stated_lengths_replace_the_bounds(lab, small, small_overrides):
    experiment = load_experiment(small, small_overrides)
    cell = make_plan(lab, experiment, Assumed(100, 20)).cells[0]
    assert cell.train.tokens == 120 * len(cell.train.answer)
    assert "as stated" in cell.train.source
    with pytest.raises(UserError, match="--answer-tokens=0"):
        Assumed(answer_tokens=0)


def test_a_stated_rate_of_answers_prices_rollouts_alone(lab, small, small_overrides):
    plan = make_plan(lab, load_experiment(small, small_overrides))
    speed = Speed(Rate(1e9, "stated"), answers=10.0)
    for entry in plan.entries:
        bound = entry.answered / 10 if entry.key.stage == "rollouts" else entry.flops / 1e9
        assert speed.seconds(entry) == bound
    with pytest.raises(UserError, match="--answer-rate"):
        Speed(Rate(1e9, "stated"), answers=0.0)


def test_stated_speeds_must_make_sense():
    assert Stated(flops=4e14, mfu=0.25).rate().flops_per_second == 1e14
    assert Stated().rate() is None
    for wrong in ({"mfu": 0.3}, {"flops": 1e12}, {"flops": 1e12, "mfu": 3}, {"throughput": 0}):
        with pytest.raises(UserError):
            Stated(**wrong)
    with pytest.raises(UserError, match="one or the other"):
        Stated(1e9, 1e12, 0.5)


def test_the_command_prints_the_bill(small, small_overrides, tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    options = ["--flops", "1e9", "--mfu", "0.5", "--price", "2"]
    assert main(["cost", small, *small_overrides, *store, *options]) == 0
    text = capsys.readouterr().out
    assert "50% of 1e+09 FLOP/s" in text
    assert max(map(len, text.splitlines())) <= 100
    assert main(["cost", small, *small_overrides, *store]) == 0
    assert "unknown until one cell has run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("match", "marked"), [("tokens", True), ("wall_time", True), ("parameters", False), ("", False)]
)
def test_a_bill_before_a_match_says_so(
    lab, small, small_overrides, write_experiment, match, marked
):
    arm = "  long: {drafter.block_size: 6}"
    name = write_experiment(arm, "even", f"match: {match}\n" if match else "")
    plan = make_plan(lab, load_experiment(name, small_overrides))
    text = cost_text(lab, plan, bill_of(plan, None), None, None)
    line = f"{match}: train.steps of the arms is not known yet; priced at the steps without it"
    assert (line in text) is marked
    assert {cell.steps for cell in plan.cells} == {2}


@pytest.mark.usefixtures("experiments")
def test_the_papers_features_would_be_terabytes(lab):
    """The known trap (DeepSpec's 38 TB): five taps of Qwen3-4B over the paper's prompts."""
    overrides = ["target=qwen3_4b", "target.device=cpu", "tier=paper", "data.mode=offline"]
    plan = make_plan(lab, load_experiment("no_qknorm", overrides))
    tokens = plan.cells[0].train.tokens
    (train, _) = [entry for entry in plan.entries if entry.key.stage == "features"]
    assert train.bytes == tokens * 5 * 2560 * 2
    assert train.bytes > 4e12
