from __future__ import annotations

import pytest

from dflash.lab.config import LabConfig, compose_config, experiments_dir, valid_names
from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches

pytestmark = pytest.mark.usefixtures("experiments")


def test_paper_recipe_has_the_papers_values():
    config = compose_config(["recipe=paper"])
    assert config.drafter == DrafterSwitches()
    assert (config.drafter.num_layers, config.drafter.block_size) == (5, 16)
    assert config.drafter.features.taps == "uniform:5"
    train = config.train
    assert (train.lr, train.epochs, train.steps, train.clip) == (6e-4, 6, None, 1.0)
    assert (train.warmup_ratio, train.anchors_per_sequence, train.max_length) == (0.04, 512, 3072)
    assert train.loss.gamma_for(config.drafter.block_size) == 7.0


@pytest.mark.parametrize("tier", ["smoke", "default", "full", "paper"])
@pytest.mark.parametrize("recipe", ["cpu", "paper"])
def test_every_tier_composes_with_every_recipe(tier, recipe):
    config = compose_config([f"tier={tier}", f"recipe={recipe}"])
    assert (config.tier, config.recipe) == (tier, recipe)


def test_paper_tier_brings_the_paper_recipe():
    assert compose_config(["tier=paper"]).recipe == "paper"


def test_every_target_composes(experiments):
    names = sorted(path.stem for path in (experiments / "target").glob("*.yaml"))
    assert "smollm2_135m" in names
    for name in names:
        assert compose_config([f"target={name}"]).target.name == name


def test_hydra_grammar_reaches_every_kind_of_value():
    config = compose_config(
        [
            "drafter.features.taps=[1,2,3]",
            "drafter.attention.qk_norm=none",
            "train.lr=1e-4",
            "train.steps=null",
            "seeds=[3,4]",
            "data.eval.aime25=5",
            "~data.eval.vicuna",
        ]
    )
    assert config.drafter.features.taps == (1, 2, 3)
    assert config.drafter.attention.qk_norm == "none"
    assert (config.train.lr, config.train.steps, config.seeds) == (1e-4, None, (3, 4))
    assert config.data.eval["aime25"] == 5
    assert "vicuna" not in config.data.eval


def test_prompt_sets_of_the_hub_can_be_named():
    assert compose_config(["data.eval={hub/math500: 7}"]).data.eval["hub/math500"] == 7


def test_base_is_weaker_than_the_command_line():
    base = ["drafter.num_layers=4", "tier=smoke"]
    assert compose_config([], base=base).drafter.num_layers == 4
    config = compose_config(["drafter.num_layers=3", "tier=default"], base=base)
    assert (config.drafter.num_layers, config.tier) == (3, "default")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("drafter.atention.qk_norm=none", "'drafter.attention.qk_norm'"),
        ("qk_norm=none", "'drafter.attention.qk_norm'"),
        ("+drafter.depth=3", "drafter.depth is not a key"),
        ("~drafter.depht", "drafter.depht is not a key"),
        ("train.loss.gama=2", "'train.loss.gamma'"),
        ("target=smolm2_135m", "did you mean 'smollm2_135m'"),
        ("tier=smok", "did you mean 'smoke'"),
        ("drafter.num_layers=three", "drafter.num_layers='three' is not valid"),
        ("drafter.num_layers=0", "an integer of at least 1"),
        ("drafter.attention.qk_norm=maybe", "drafter.attention.qk_norm='maybe' is not valid"),
        ("drafter.attention.context=window:x", "window:<n>"),
        ("drafter.num_layers=1,2", "drafter.num_layers=1,2 is a sweep; give one value"),
        ("drafter.num_layers", "drafter.num_layers"),
        ("seeds=[1,1]", "seeds=[1, 1] is not valid"),
        ("seeds=[-1]", "seeds=[-1] is not valid"),
        ("seeds=x", "seeds='x' is not valid"),
        ("hydra.run.dir=x", "hydra.run.dir is not a key"),
        ("drafter=5", "drafter"),
    ],
)
def test_bad_overrides_give_one_line(override, message):
    with pytest.raises(UserError) as caught:
        compose_config([override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_key_in_yaml_is_refused(experiments):
    (experiments / "tier" / "smoke.yaml").write_text("# @package _global_\ntrain:\n  stepz: 3\n")
    with pytest.raises(UserError, match=r"train\.stepz is not a key; did you mean 'train\.steps'"):
        compose_config(["tier=smoke"])


def test_experiments_dir_order(tmp_path, monkeypatch):
    assert experiments_dir() == (tmp_path / "experiments").resolve()
    monkeypatch.setenv("DFLASH_EXPERIMENTS", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere"):
        experiments_dir()
    monkeypatch.delenv("DFLASH_EXPERIMENTS")
    monkeypatch.chdir(tmp_path)
    assert experiments_dir() == (tmp_path / "experiments").resolve()
    monkeypatch.chdir("/")
    assert (experiments_dir() / "ablation" / "no_qknorm.yaml").is_file()


def test_tree_names_every_value_once():
    tree = compose_config().tree()
    assert set(tree) == {"target", "drafter", "data", "train", "decode", "seeds"}
    assert "drafter.attention.leak" in valid_names()
    assert isinstance(compose_config(), LabConfig)


def test_the_executor_is_no_part_of_what_determines_a_cell():
    plain = compose_config()
    elsewhere = compose_config(["executor.kind=ray", "executor.workers=2", "executor.ray.gpus=1"])
    assert elsewhere.executor.kind == "ray"
    assert elsewhere.executor.ray.gpus == 1
    assert elsewhere.tree() == plain.tree()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("executor.kind=cloud", r"executor\.kind='cloud'"),
        ("executor.workers=0", r"executor\.workers=0 is not valid; allowed: null or an integer"),
        ("executor.retries=-1", r"executor\.retries=-1 is not valid; allowed: an integer of at"),
        ("executor.slurm.gpus=-1", r"executor\.slurm\.gpus=-1"),
        ("executor.slurm.extra={ntasks_per_node: 2}", r"train\.nodes sets the nodes"),
        ("executor.slurm.partion=a", r"did you mean 'executor\.slurm\.partition'"),
    ],
)
def test_a_wrong_executor_is_one_line(override, message):
    with pytest.raises(UserError, match=message):
        compose_config([override])


def test_options_of_slurm_are_free():
    config = compose_config(["executor.slurm.extra.account=me", "executor.slurm.extra.qos=long"])
    assert config.executor.slurm.extra == {"account": "me", "qos": "long"}


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("train.lr=2e-3", False),
        ("drafter.num_layers=2", False),
        ("target.name=other", False),
        ("train.logger=wandb", True),
        ("train.checkpoint_every=5", True),
        ("seeds=[5]", True),
    ],
)
def test_a_setting_is_all_but_seeds_and_what_only_watches(override, same):
    assert (compose_config([override]).setting == compose_config().setting) is same
