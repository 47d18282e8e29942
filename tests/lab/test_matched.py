"""Arms that are not matched are found, named and kept out of every comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from analysis.load import load
from dflash.cli import main
from dflash.data.order import StepOrder
from dflash.lab.config import compose_config, config_from_tree
from dflash.lab.experiment import Arm, load_experiment
from dflash.lab.experiment_file import list_experiments
from dflash.lab.grid import Outcome, PlannedArm
from dflash.lab.invariants import parse_invariants
from dflash.lab.matched import prove_matched
from dflash.lab.pipeline import Cell
from dflash.lab.results import read_table
from dflash.lab.run import run_experiment
from dflash.lab.schema import difference, patched
from dflash.lab.stages.train import Trained
from dflash.training import init as initial
from dflash.training.fed import parameter_hashes
from dflash.training.run import build_drafter
from tests.data.toys import made_up
from tests.training.toys import SHAPES, toy

SHIPPED = Path(__file__).resolve().parents[2] / "experiments"
ROLLOUTS = made_up(SHAPES, vocab=20)
FACTS = {
    "steps": 2,
    "order_hash": "o",
    "anchor_hash": "a",
    "feature_hash": "f",
    "init": {"fc.weight": "8x4:1", "norm.weight": "4:1", "old": "2:1"},
}
OTHER = {
    "order": {"order_hash": "x"},
    "anchors": {"anchor_hash": "x"},
    "features": {"feature_hash": ""},
    "initial values": {"init": {"fc.weight": "8x4:2", "norm.weight": "4:1", "new": "2:9"}},
}


@pytest.fixture
def config(small, small_overrides):
    return compose_config([*small_overrides, "train.init=random"])


def outcome(name: str, config, patch=None, seed: int = 0, control=None, **facts) -> Outcome:
    """A cell with made-up facts, of an arm that declares ``patch``."""
    changed = config_from_tree(patched(config.tree(), patch or {}), "", "")
    diff = difference(config.tree(), changed.tree())
    planned = PlannedArm(Arm(name, changed, diff), None, 0)  # type: ignore[arg-type]
    trained = Trained("train-x", Path("nowhere"), FACTS | facts)
    return Outcome(planned, seed, Cell(trained, Path("nowhere"), None))


def verdicts(config, patch, what: str) -> tuple[bool, str]:
    """Is an arm with this patch accepted when it differs in ``what``, and what is said."""
    arm = outcome("arm", config, patch, **OTHER[what])
    proof = prove_matched([outcome("control", config), arm])
    return proof.outcomes[1].cell is not None, proof.report()["sentence"]


def test_equal_arms_are_matched(config):
    patch = {"drafter.attention.qk_norm": "none"}
    proof = prove_matched([outcome("control", config), outcome("arm", config, patch)])
    assert all(item.cell is not None for item in proof.outcomes)
    assert proof.report()["sentence"] == (
        "Arms matched: order, anchors, features, 3 shared parameters equal at the start."
    )


def test_a_declared_difference_fails_the_run_where_an_invariant_forbids_it(config):
    patch = {"train.sequences": 1}
    arm = outcome("arm", config, patch, **OTHER["order"])
    lines = ["same order except other", "same anchors"]
    promise = parse_invariants(lines, ["control", "arm", "other"])
    for invariants, kept in ((promise, False), (promise[1:], True), ((), True)):
        proof = prove_matched([outcome("control", config), arm], invariants)
        assert (proof.outcomes[1].cell is not None) is kept
    broken = prove_matched([outcome("control", config), arm], promise).outcomes[1].error
    assert broken == "not matched: arm breaks 'same order except other': x, the control has o"


def test_runs_of_other_lengths_are_compared_as_far_as_both_went(config, tmp_path):
    chain = [["o1", "a1", "f1"], ["o", "a", "f"], ["o3", "a3", "f3"]]
    (tmp_path / "fed.json").write_text(json.dumps({"chain": chain}))
    patch = {"train.steps": 3}
    for start, kept in (("a", True), ("x", False)):
        chain[1][1] = start
        (tmp_path / "fed.json").write_text(json.dumps({"chain": chain}))
        longer = outcome("arm", config, patch, steps=3, order_hash="o3", anchor_hash="a3")
        trained = replace(longer.cell.trained, checkpoint=tmp_path / "drafter")
        longer = replace(longer, cell=replace(longer.cell, trained=trained))
        proof = prove_matched([outcome("control", config), longer])
        assert (proof.outcomes[1].cell is not None) is kept


@pytest.mark.parametrize("what", OTHER)
def test_an_undeclared_difference_fails_the_run(config, what):
    arm = outcome("arm", config, {"drafter.attention.qk_norm": "none"}, **OTHER[what])
    proof = prove_matched([outcome("control", config), arm])
    failed = proof.outcomes[1]
    assert proof.outcomes[0].cell is not None
    assert failed.cell is None
    assert failed.error.startswith(f"not matched: {what}")
    assert "from the control's although no declared key governs" in failed.error
    if what == "initial values":
        assert "of fc.weight differ" in failed.error
    assert proof.report()["sentence"].startswith(f"Arms NOT matched: arm, seed 0: {what}")


@pytest.mark.parametrize(
    ("patch", "governed"),
    [
        ({"train.sequences": 3}, {"order", "anchors", "features"}),
        ({"train.anchors": "all"}, {"anchors"}),
        ({"train.anchors_per_sequence": 9}, {"anchors"}),
        ({"drafter.block_size": 8}, set()),
        ({"drafter.block_size": 8, "train.anchors": "uniform"}, {"anchors"}),
        ({"drafter.features.taps": "late"}, {"features"}),
        ({"drafter.features.taps": "late", "train.init": "target"}, {"features", "initial values"}),
        ({"drafter.kv.fusion": "none"}, {"features"}),
        ({"drafter.kv.fusion": "input"}, set()),
        ({"data.mode": "online"}, set()),
        ({"data.feature_dtype": "float32"}, {"features"}),
        ({"data.train.written": 9}, {"order", "anchors", "features"}),
        ({"data.eval_new_tokens": 9}, set()),
        ({"target.dtype": "bfloat16"}, set(OTHER)),
        ({"train.init": "target"}, {"initial values"}),
        ({"drafter.num_layers": 2}, set()),
        ({"drafter.num_layers": 2, "train.init": "target"}, {"initial values"}),
        ({"train.lr": 1.0}, set()),
    ],
    ids=str,
)
def test_what_governs_what(config, patch, governed):
    found = {what for what in OTHER if verdicts(config, patch, what)[0]}
    assert found == governed
    for what in governed:
        assert f"except as declared: arm: {what} (" in verdicts(config, patch, what)[1]


@pytest.mark.parametrize("init", ["random", "target"])
@pytest.mark.parametrize("name", list_experiments(SHIPPED))
def test_no_shipped_arm_starts_otherwise_than_it_declares(experiments, name, init):
    """Drafters of every arm as training would start them, on a deep toy target."""
    target = toy(layers=24, tied=False)
    overrides = ["drafter.vocab=full", f"train.init={init}"]
    outcomes = []
    for arm in load_experiment(name, overrides).arms:
        drafter = build_drafter(arm.config.drafter, target, ROLLOUTS, arm.config.train, seed=0)
        trained = Trained("", Path(), FACTS | {"init": parameter_hashes(drafter)})
        planned = PlannedArm(arm, None, 0)  # type: ignore[arg-type]
        outcomes.append(Outcome(planned, 0, Cell(trained, Path(), None)))
    assert [item.error for item in prove_matched(outcomes).outcomes] == [""] * len(outcomes)


def test_a_seed_is_compared_with_its_own_control(config):
    arms = [outcome("control", config), outcome("arm", config, {"train.lr": 1.0})]
    other = {"order_hash": "x"}
    later = [outcome("control", config, seed=1, **other)]
    later += [outcome("arm", config, {"train.lr": 1.0}, seed=1, **other)]
    assert all(item.cell is not None for item in prove_matched([*arms, *later]).outcomes)
    crossed = prove_matched([*arms, later[0], outcome("arm", config, {"train.lr": 1.0}, seed=1)])
    assert [item.cell is None for item in crossed.outcomes] == [False, False, False, True]


def test_a_failed_cell_is_compared_with_nothing(config):
    failed = outcome("control", config)
    failed = Outcome(failed.planned, 0, None, "broke")
    proof = prove_matched([failed, outcome("arm", config, {"train.lr": 1.0})])
    assert [item.error for item in proof.outcomes] == ["broke", ""]
    assert proof.report() == {
        "sentence": "Arms not compared: no arm ran beside its control.",
        "comparisons": [],
    }


def test_a_run_records_its_hashes_and_says_that_arms_are_matched(
    lab, small, small_overrides, tmp_path, write_experiment
):
    name = write_experiment(
        "  bare: {drafter.attention.qk_norm: none}\n  late: {drafter.features.taps: [4]}\n"
        "  blind: {drafter.kv.fusion: none}"
    )
    finished = run_experiment(lab, load_experiment(name, small_overrides), tmp_path / "results")
    assert finished.failed == []
    runs = {row["run_id"]: row for row in read_table(finished.directory / "runs.parquet")}
    control, bare, late = (runs[f"{arm}-s0"] for arm in ("control", "bare", "late"))
    for kind in ("order_hash", "anchor_hash", "feature_hash", "init_hash"):
        assert len(control[kind]) == 16
        assert runs["floor-unigram"][kind] == ""
        assert control[kind] != runs["control-s1"][kind]
    for kind in ("order_hash", "anchor_hash"):
        assert control[kind] == bare[kind] == late[kind]
    assert control["feature_hash"] == bare["feature_hash"] != late["feature_hash"]
    assert runs["blind-s0"]["feature_hash"] == ""
    assert control["init_hash"] != bare["init_hash"]
    report = json.loads((finished.directory / "matched.json").read_text())
    assert report["sentence"].startswith("Arms matched: order, anchors, features, ")
    assert "late: features (drafter.features.taps)" in report["sentence"]
    assert len(report["comparisons"]) == 3 * 2 * 4
    assert load(name, tmp_path / "results").matched == report


def test_a_planted_shift_of_the_starting_values_fails_the_command(
    small, small_overrides, tmp_path, monkeypatch, capsys, write_experiment
):
    """One generator for all parameters: a layer less shifts what is drawn after it."""

    def shifting(drafter, seed):
        torch.manual_seed(seed)
        for parameter in drafter.parameters():
            parameter.data.normal_()

    monkeypatch.setattr(initial, "init_by_name", shifting)
    name = write_experiment("  deep: {drafter.num_layers: 2}\n  open: {train.lr: 0.5}")
    places = ["--store", str(tmp_path / "store"), "--results", str(tmp_path / "results")]
    assert main(["ablate", name, *small_overrides, "train.init=random", *places]) == 1
    said = capsys.readouterr()
    assert "failed: deep, seed 1: not matched: initial values of " in said.err
    assert "open" not in said.err
    result = load(name, tmp_path / "results")
    runs = result.runs.set_index("run_id")
    assert list(runs.index[runs["status"] == "failed"]) == ["deep-s0", "deep-s1"]
    assert not result.prompts["run_id"].str.startswith("deep").any(), "never averaged in"
    assert "Arms NOT matched: deep, seed 0: initial values" in said.out


def test_a_planted_order_fails_the_arm(lab, small, small_overrides, tmp_path, monkeypatch):
    """The data set of one arm feeds its sequences in another order."""
    rows = StepOrder.rows
    fed = []

    def shuffled(self, step):
        fed.append(step)
        late = len(fed) > len(range(2))  # the control's two steps are honest
        return rows(self, step)[::-1] if late else rows(self, step)

    monkeypatch.setattr(StepOrder, "rows", shuffled)
    experiment = load_experiment(small, [*small_overrides, "seeds=[0]"])
    finished = run_experiment(lab, experiment, tmp_path / "results")
    assert [arm for arm, _, _ in finished.failed] == ["bare", "leaky"]
    assert all(error.startswith("not matched: order differs") for *_, error in finished.failed)
