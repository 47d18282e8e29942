"""Arms of equal budget: what is set, and that the budget is then equal."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import yaml

from dflash.lab import run
from dflash.lab.budget import RULES, _slots, match_budget
from dflash.lab.experiment import load_experiment
from dflash.lab.grid import plan_arms
from dflash.lab.results import read_table
from dflash.lab.run import run_experiment
from dflash.lab.stages import pace
from dflash.lab.stages.answers import build_answers
from dflash.lab.stages.target import target_info
from dflash.lab.upkeep.wanted import wanted_entries
from dflash.model.errors import UserError
from dflash.model.flops import STEP_CONTEXT, Sizes, Work, forward_flops
from dflash.training.supervision import supervised_slots

DEEP = "  deep: {drafter.num_layers: 2}"
LONG = "  long: {drafter.block_size: 6}"


@pytest.fixture
def unmatched(small, small_overrides, write_experiment):
    """The experiment whose one arm is to be matched to the control, as it is written."""

    def make(arm: str, match: str, *overrides: str):
        name = write_experiment(arm, "even", f"match: {match}\n")
        return load_experiment(name, [*small_overrides, "train.steps=12", *overrides])

    return make


@pytest.fixture
def matched(lab, unmatched):
    """The same, matched."""
    return lambda *words: match_budget(lab, unmatched(*words))


def test_every_rule_can_be_asked_for():
    assert set(RULES) == {"parameters", "draft_flops", "tokens", "wall_time"}


def test_parameters_are_equal_up_to_one_neuron(matched, lab):
    experiment = matched(DEEP, "parameters", "drafter.mlp_size=200")
    control, deep = plan_arms(lab, experiment)
    neuron = 3 * 32 * 2  # rows of gate, up and down, in two layers
    assert abs(control.parameters - deep.parameters) <= neuron / 2
    assert deep.arm.matched.keys() == {"drafter.mlp_size"}
    assert deep.arm.diff.keys() == {"drafter.num_layers", "drafter.mlp_size"}


def test_draft_flops_are_equal_up_to_one_neuron(matched, lab):
    for arm in (DEEP, LONG):
        experiment = matched(arm, "draft_flops", "drafter.mlp_size=2000")
        (changed,) = experiment.arms[1:]
        sizes = Sizes.of(plan_arms(lab, experiment)[0].info.hf_config)
        costs = [
            forward_flops(
                sizes,
                a.config.drafter,
                2,
                Work.of_draft_step(STEP_CONTEXT, a.config.drafter.block_size),
            ).total
            for a in experiment.arms
        ]
        drafter = changed.config.drafter
        neuron = 6 * 32 * drafter.num_layers * drafter.block_size
        assert abs(costs[0] - costs[1]) <= neuron / 2
        assert changed.matched["drafter.mlp_size"] < 2000


def test_what_no_mlp_can_save_is_refused(matched):
    with pytest.raises(UserError, match="arm deep, match=parameters: no MLP is small enough"):
        matched(DEEP, "parameters", "drafter.mlp_size=1")


def test_tokens_are_equal_up_to_half_a_step(matched, lab, tmp_path):
    experiment = matched(LONG, "tokens")
    (steps,) = experiment.arms[1].matched.values()
    assert 1 < steps < 12
    finished = run_experiment(lab, experiment, tmp_path / "results")
    runs = [r for r in read_table(finished.directory / "runs.parquet") if r["kind"] == "drafter"]
    tokens = {arm: sum(r["tokens"] for r in runs if r["arm"] == arm) for arm in ("control", "long")}
    per_step = tokens["long"] / steps
    assert abs(tokens["control"] - tokens["long"]) <= per_step
    assert {r["steps"] for r in runs if r["arm"] == "long"} == {steps}
    text = yaml.safe_load((finished.directory / "config.yaml").read_text())
    assert (text["match"], text["matched"]) == ("tokens", {"long": {"train.steps": steps}})


@pytest.mark.parametrize("seeds", ["[0]", "[0,1]"])
def test_no_other_number_of_steps_comes_nearer(matched, lab, seeds):
    """Against the sums written out."""
    experiment = matched(LONG, "tokens", f"seeds={seeds}")
    info = target_info(lab, experiment.config.target)
    rollouts = build_answers(lab, experiment.config, "train", info.identity).rollouts()

    def seen(config, steps: int) -> int:
        parts = (config.train, config.drafter, rollouts, info.hf_config.vocab_size)
        runs = [supervised_slots(*parts, seed) for seed in experiment.seeds]
        return sum(slots(step) for slots in runs for step in range(steps))

    wanted = seen(experiment.config, 12)
    arm = experiment.arms[1].config
    distance = {steps: abs(seen(arm, steps) - wanted) for steps in range(1, 13)}
    assert distance[arm.train.steps] == min(distance.values())


def test_all_seeds_count(unmatched, lab):
    config = unmatched(LONG, "tokens").config
    info = target_info(lab, config.target)
    both, *each = (list(islice(_slots(lab, config, info, s), 6)) for s in ((0, 1), (0,), (1,)))
    assert both == [sum(step) for step in zip(*each, strict=True)]
    assert each[0] != each[1]


def test_the_pace_belongs_to_what_a_run_used(matched, lab, monkeypatch, tmp_path):
    """Without it garbage collection would take it, and the arms would get other steps."""
    monkeypatch.setattr(pace, "STEPS", 2)
    experiment = matched(DEEP, "wall_time", "seeds=[0]", "train.steps=3")
    finished = run_experiment(lab, experiment, tmp_path / "results")
    entries = json.loads((finished.directory / "provenance" / "entries.json").read_text())
    (entry,) = lab.store.entries("pace")
    assert entry.name in entries["deep-s0"]
    assert entry.name not in entries["control-s0"]


def test_why_knows_a_matched_arm_by_its_matched_entries(unmatched, lab, tmp_path):
    experiment = unmatched(DEEP, "parameters", "seeds=[0]", "drafter.mlp_size=200")
    run_experiment(lab, experiment, tmp_path / "results")
    wanted = wanted_entries(lab, experiment)
    assert len(wanted) > 10
    assert all(lab.store.has(item.key) for item in wanted.values())


def test_a_quota_is_held_against_the_matched_arms(unmatched, lab, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(run, "hold_to_quota", lambda lab, e, quota: asked.append(e.arms[1]))
    run_experiment(lab, unmatched(LONG, "tokens"), tmp_path / "results")
    assert [bool(arm.matched) for arm in asked] == [False, True]


def test_wall_time_follows_the_measured_pace(matched, lab, monkeypatch):
    monkeypatch.setattr(pace, "STEPS", 3)
    experiment = matched(DEEP, "wall_time")
    (entry,) = lab.store.entries("pace")
    seconds = json.loads((entry / pace.PACE).read_text())
    assert min(seconds.values()) > 0
    expected = max(1, round(12 * seconds["control"] / seconds["arm"]))
    assert experiment.arms[1].config.train.steps == expected
    assert not list(entry.glob(".*"))
    again = matched(DEEP, "wall_time")  # a second measurement would hardly give the same figures
    assert again.arms[1].config == experiment.arms[1].config
    assert len(lab.store.entries("pace")) == 1


@pytest.mark.parametrize(("match", "setting"), [("parameters", "mlp_size"), ("tokens", "steps")])
def test_an_arm_that_costs_the_same_is_left_alone(matched, match, setting):
    experiment = matched("  causal: {drafter.attention.block: causal}", match)
    assert experiment.arms[1].matched == {}
    assert setting not in str(experiment.arms[1].diff)


def test_slots_are_counted_as_they_are_trained(matched, lab, tmp_path):
    """From shifted seeds the control itself sees other slots."""
    experiment = matched("  other: {train.seed_shift: 1000}", "tokens", "seeds=[0]")
    finished = run_experiment(lab, experiment, tmp_path / "results")
    runs = [r for r in read_table(finished.directory / "runs.parquet") if r["kind"] == "drafter"]
    control, other = (next(r for r in runs if r["arm"] == arm) for arm in ("control", "other"))
    assert abs(control["tokens"] - other["tokens"]) <= other["tokens"] / other["steps"]


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("train.checkpoint_every=7", True),
        ("train.logger=tensorboard", True),
        ("train.steps=99", True),
        ("data.mode=online", False),
        ("data.feature_dtype=float32", False),
        ("train.lr=0.5", False),
    ],
)
def test_a_pace_is_measured_again_where_it_may_differ(lab, small, small_overrides, override, same):
    before, after = (
        load_experiment(small, [*small_overrides, *more]).config for more in ([], [override])
    )
    info = target_info(lab, before.target)
    keys = [pace.pace_key(config, config, info).name for config in (before, after)]
    assert (keys[0] == keys[1]) is same


def test_several_devices_have_no_pace(matched):
    with pytest.raises(UserError, match=r"train\.devices=2 is not valid; allowed: 1 with match"):
        matched(DEEP, "wall_time", "train.devices=2")


def test_an_arm_that_sets_what_the_match_decides_is_refused(matched):
    with pytest.raises(UserError, match=r"sets train\.steps, which match=tokens decides"):
        matched("  slow: {train.steps: 3}", "tokens")


def test_without_a_match_nothing_changes(lab, small, small_overrides):
    experiment = load_experiment(small, small_overrides)
    assert match_budget(lab, experiment) is experiment
