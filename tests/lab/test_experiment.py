from __future__ import annotations

from pathlib import Path

import pytest

from dflash.lab.experiment import load_experiment
from dflash.lab.experiment_file import list_experiments, read_experiment
from dflash.lab.schema import flatten
from dflash.model.errors import UserError

pytestmark = pytest.mark.usefixtures("experiments")
SHIPPED = sorted((Path(__file__).resolve().parents[2] / "experiments" / "ablation").glob("*.yaml"))
REQUIRED = {
    "no_qknorm",
    "q_or_k_norm",
    "causal_block",
    "index_causal",
    "context_window",
    "no_target",
    "kv_draft_only",
    "separate_kv",
    "input_fusion",
    "no_context_rope",
    "taps",
    "layers",
    "block_size",
    "uniform_anchors",
    "no_decay",
    "mask_embedding",
    "leaky_context",
    "plain_attention",
}


def test_the_promised_experiments_are_shipped():
    assert {path.stem for path in SHIPPED} >= REQUIRED
    assert all(question.endswith("?") for question in list_experiments().values())


@pytest.mark.parametrize("recipe", ["cpu", "paper"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_experiment_changes_exactly_what_it_declares(path, recipe):
    text = read_experiment(path)
    declared = text.get("arms") or {}
    experiment = load_experiment(path.stem, [f"recipe={recipe}"])
    assert experiment.arms[0].control
    arms = {arm.name: arm for arm in experiment.arms[1:]}
    assert {name for name, arm in arms.items() if not arm.levels} == set(declared)
    for name, arm in arms.items():
        before, after = (flatten(one.tree()) for one in (experiment.config, arm.config))
        differing = {key for key in before | after if before.get(key) != after.get(key)}
        patch = arm.levels or flatten(declared[name])
        assert differing == {key for key, value in patch.items() if value != before[key]}
        assert {key: after[key] for key in patch} == patch
        assert arm.diff.keys() == differing


def test_only_a_leaking_arm_is_invalid():
    for name in list_experiments():
        for arm in load_experiment(name).arms:
            assert arm.invalid == arm.name.startswith("leak")


def test_nested_patches_equal_dotted_ones(write_experiment):
    nested = write_experiment("  a: {drafter: {attention: {qk_norm: q}}}", "nested")
    dotted = write_experiment("  a: {drafter.attention.qk_norm: q}", "dotted")
    assert load_experiment(nested).arms == load_experiment(dotted).arms


def test_arms_are_patches_of_the_control(write_experiment):
    name = write_experiment("  a: {train.lr: 0.5}", extra="control: {drafter.num_layers: 4}\n")
    experiment = load_experiment(name)
    assert [arm.config.drafter.num_layers for arm in experiment.arms] == [4, 4]
    assert experiment.arms[1].diff == {"train.lr": (experiment.config.train.lr, 0.5)}


def test_base_overrides_apply_to_all_arms_and_yield_to_the_command_line(write_experiment):
    base = "base: [drafter.num_layers=4, train.clip=2]\n"
    name = write_experiment("  a: {train.lr: 0.5}", extra=base)
    experiment = load_experiment(name, ["drafter.num_layers=3"])
    assert [arm.config.drafter.num_layers for arm in experiment.arms] == [3, 3]
    assert experiment.config.train.clip == 2


def test_seeds_of_the_command_line_win_over_the_tier_and_the_experiment(write_experiment):
    name = write_experiment("  a: {train.lr: 0.5}", extra="seeds: [5, 6]\n")
    assert load_experiment(name).seeds == (5, 6)
    assert load_experiment(name, ["tier=smoke"]).seeds == (0,)
    assert load_experiment(name, ["tier=smoke", "seeds=[7]"]).seeds == (7,)


def test_an_experiment_can_be_a_file_of_ones_own(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("question: q\nhypothesis: h\npaper: p\narms: {a: {train.lr: 0.5}}\n")
    assert load_experiment(str(path)).name == "own"
    with pytest.raises(UserError, match="does not exist"):
        load_experiment(str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ("  a: {drafter.attention.qk_nrom: q}", "did you mean 'drafter.attention.qk_norm'"),
        ("  a: {drafter.attention.qk_norm: both}", "is 'both' in the control too"),
        ("  a: {drafter.attention.qk_norm: 7}", "drafter.attention.qk_norm=7 is not valid"),
        ("  a: {drafter.num_layers: 2.5}", "drafter.num_layers"),
        ("  a: {}", "changes nothing"),
        ("  a: 3", "not a mapping"),
        ("  control: {train.lr: 0.5}", "not 'control'"),
        ("  floor:x: {train.lr: 0.5}", "arms='floor:x'"),
        ("  a: {seeds: [1]}", "seeds belongs to the whole run"),
        ("  a: {executor.workers: 2}", "executor.workers belongs to the whole run"),
        ("  a: {drafter.kv: {source: draft}, drafter.kv.source: target}", "given twice"),
        ("  a: {train.lr: 0.5}\nseeds: [0, 0]", "seeds=[0, 0]"),
        ("  a: {train.lr: 0.5}\nqueston: x", "did you mean 'question'"),
        ("  a: {train.lr: 0.5}\nbase: drafter.num_layers=3", "base must be a list"),
        ("  a: {train.lr: [", "not readable YAML"),
        ("  - a", "arms must map"),
        ("  a: {train.lr: 0.5}\nmatch: money", "match='money'"),
        ("  a: {train.lr: 0.5}\nseeds: []", "seeds=[] is not valid"),
        (
            "  a: {train.lr: 0.5}\nmatch: parameters\ninvariants: [same parameters]",
            "match=parameters sees to",
        ),
        ("  a: {train.lr: 0.5}\ninvariants: [same colour]", "invariants='same colour'"),
        ("  a: {train.lr: 0.5}\ninvariants: [same parameters except b]", "of the experiment: co"),
        ("  a: {train.lr: 0.5}\ninvariants: same parameters", "invariants must be a list"),
        ("grid: {train.lr: 0.5}", "grid.train.lr=0.5"),
        ("grid: {train.lr: [0.5, 0.25]}", "that holds the control's"),
        ("grid: {train.lrr: [0.5, 0.25]}", "grid: train.lrr is not a key"),
        ("grid: {drafter.num_layers: [1, 1]}", "distinct values"),
        ("grid: [a]", "grid must map"),
    ],
)
def test_bad_experiments_give_one_line(write_experiment, arms, message):
    name = write_experiment(arms)
    with pytest.raises(UserError) as caught:
        load_experiment(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_without_arms_is_refused(write_experiment):
    name = write_experiment("  {}")
    with pytest.raises(UserError, match="arms and grid are both missing"):
        load_experiment(name)


GRID = """grid:
  drafter.num_layers: [1, 2, 3]
  drafter.attention.block: [bidirectional, causal]
"""


def test_a_grid_is_every_combination_of_its_levels(write_experiment):
    promise = "invariants:\n  - same parameters except slow, num_layers-2\n"
    extra = f"{GRID}{promise}match: tokens\n"
    name = write_experiment("  slow: {train.lr: 0.5}", extra=extra)
    experiment = load_experiment(name, ["drafter.num_layers=1"])
    assert [arm.name for arm in experiment.arms] == [
        "control",
        "block-causal",
        "num_layers-2",
        "num_layers-2+block-causal",
        "num_layers-3",
        "num_layers-3+block-causal",
        "slow",
    ]
    cells = [arm for arm in experiment.arms if arm.levels]
    assert len(cells) == 6
    for arm in cells:
        drafter = arm.config.drafter
        assert list(arm.levels.values()) == [drafter.num_layers, drafter.attention.block]
    assert experiment.arms[3].diff == {
        "drafter.num_layers": (1, 2),
        "drafter.attention.block": ("bidirectional", "causal"),
    }
    assert experiment.arms[-1].levels == {}
    assert [str(line) for line in experiment.invariants] == [
        "same parameters except slow, num_layers-2"
    ]
    assert experiment.match == "tokens"


def test_a_grid_needs_no_other_arms(write_experiment, experiments):
    name = write_experiment("  {}", extra=GRID)
    assert len(load_experiment(name, ["drafter.num_layers=2"]).arms) == 6


def test_an_arm_may_not_take_the_name_of_a_cell(write_experiment):
    name = write_experiment("  block-causal: {train.lr: 0.5}", extra=GRID)
    with pytest.raises(UserError, match="arms='block-causal'"):
        load_experiment(name, ["drafter.num_layers=1"])


def test_an_undeclared_change_is_refused(write_experiment, monkeypatch):
    """A section that derives one field from another would change more than the arm says."""
    import dflash.lab.experiment as module

    honest = module.config_from_tree

    def deriving(tree, recipe, tier):
        if tree["drafter"]["num_layers"] == 7:
            tree["train"]["clip"] = 9.0
        return honest(tree, recipe, tier)

    monkeypatch.setattr(module, "config_from_tree", deriving)
    name = write_experiment("  a: {drafter.num_layers: 7}")
    with pytest.raises(UserError, match=r"arm a changes train\.clip, which it does not declare"):
        load_experiment(name)


def test_unknown_experiment_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'no_qknorm'"):
        load_experiment("no_qk_norm")


@pytest.mark.parametrize("field", ["question", "hypothesis", "paper"])
def test_missing_fields_are_named(experiments, field):
    text = {"question": "q", "hypothesis": "h", "paper": "p", "arms": "{a: {train.lr: 0.5}}"}
    del text[field]
    path = experiments / "ablation" / "mine.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in text.items()))
    with pytest.raises(UserError, match=f"the field {field} is missing"):
        load_experiment("mine")
