from __future__ import annotations

import pytest
import torch

from dflash.model import DFlashDraftModel, UserError, drafter_config
from dflash.target.oracle import OracleTarget
from dflash.training.init import INITIALISERS, init_by_name, init_from_target, named_normal
from dflash.training.run import build_drafter
from tests.data.toys import made_up
from tests.training.toys import SHAPES, recipe, switches, toy


def drafter_of(target, seed: int = 0, init: str = "random", **given) -> DFlashDraftModel:
    rollouts = made_up(SHAPES, vocab=20)
    return build_drafter(switches(**given), target, rollouts, recipe(init=init), seed)


def parameters(drafter: DFlashDraftModel) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in drafter.named_parameters()}


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request):
    return toy(family=request.param, tied=False)


ARMS = [
    {"attention": {"qk_norm": "none"}},
    {"attention": {"qk_norm": "q"}},
    {"kv": {"projection": "separate"}},
    {"kv": {"fusion": "input"}},
    {"kv": {"source": "draft"}},
    {"features": {"taps": (0, 2), "norm": False}},
    {"num_layers": 3},
    {"block_size": 9},
    {"mask_embedding": "learned"},
    {"vocab": "top:8"},
]


# With another depth, layer i starts from another layer of the target.
CASES = [
    (init, arm)
    for init in ("random", "target")
    for arm in ARMS
    if not (init == "target" and "num_layers" in arm)
]


@pytest.mark.parametrize(("init", "arm"), CASES, ids=str)
def test_what_arms_share_starts_equal(target, init, arm):
    control, other = (parameters(drafter_of(target, init=init, **given)) for given in ({}, arm))
    shared = control.keys() & other.keys()
    assert len(shared) >= 10
    for name in shared:
        assert torch.equal(control[name], other[name]), name


def test_seeds_differ_and_global_randomness_does_not_matter(target):
    torch.manual_seed(1)
    first = parameters(drafter_of(target))
    torch.manual_seed(2)
    again, other = parameters(drafter_of(target)), parameters(drafter_of(target, seed=1))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert name.endswith("norm.weight") or not torch.equal(value, other[name])


def test_random_values_have_the_configs_spread(target):
    drafter = drafter_of(target, mask_embedding="learned")
    for name, value in parameters(drafter).items():
        if name.endswith("norm.weight"):
            assert torch.equal(value, torch.ones_like(value))
        else:
            assert value.std() == pytest.approx(drafter.config.initializer_range, rel=0.5)
            assert value.unique().numel() > value.numel() / 2


def test_named_values_are_frozen():
    """Stored drafters were started from these; another generator would make them unrepeatable."""
    values = named_normal("fc.weight", torch.Size([3]), 0)
    torch.testing.assert_close(values, torch.tensor(FROZEN), atol=1e-5, rtol=0)
    assert not torch.equal(values, named_normal("norm.weight", torch.Size([3]), 0))


FROZEN = [0.6691784, -0.0334497, 0.1374355]


def test_from_target_copies_the_last_layers(target):
    drafter = drafter_of(target, init="target", num_layers=2)
    near = ("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")
    theirs = [dict(layer.named_parameters()) for layer in target.layers[-2:]]
    for index, (layer, source) in enumerate(zip(drafter.layers, theirs, strict=True)):
        for name, value in layer.named_parameters():
            if name not in source:
                assert name.endswith(("q_norm.weight", "k_norm.weight"))
                continue
            assert value.data_ptr() != source[name].data_ptr()  # a copy: ours is trained
            # the first layer's queries and keys start near-sighted
            assert torch.equal(value, source[name]) == (index > 0 or not name.endswith(near))
    assert torch.equal(drafter.norm.weight, target.model.model.norm.weight)
    assert torch.equal(drafter.hidden_norm.weight, target.layers[2].input_layernorm.weight)


def test_separate_projections_start_as_the_shared_one(target):
    drafter = drafter_of(target, init="target", kv={"projection": "separate"})
    attention = drafter.layers[0].self_attn
    theirs = target.layers[-1].self_attn
    assert torch.equal(attention.k_proj_context.weight, attention.k_proj.weight)
    assert torch.equal(attention.v_proj_context.weight, theirs.v_proj.weight)


def test_a_norm_the_target_lacks_keeps_the_size_of_its_queries():
    target = toy(family="llama")
    drafter = drafter_of(target, init="target", num_layers=2)
    layer = target.layers[-1]
    x = torch.randn(4000, target.hidden_size) * layer.input_layernorm.weight
    for ours, theirs in (("q_norm", "q_proj"), ("k_norm", "k_proj")):
        size = getattr(layer.self_attn, theirs)(x).pow(2).mean().sqrt()
        weight = getattr(drafter.layers[1].self_attn, ours).weight
        torch.testing.assert_close(weight, size.expand_as(weight), rtol=0.03, atol=0)


def test_fusion_starts_as_the_tap_below_the_first_copied_layer(target):
    drafter = drafter_of(target, init="target", num_layers=2, features={"taps": (0, 1, 2)})
    size = target.hidden_size
    random = parameters(drafter_of(target, num_layers=2, features={"taps": (0, 1, 2)}))
    rest = drafter.fc.weight.detach().clone()
    rest[:, size : 2 * size] -= torch.eye(size)  # layers 2 and 3 are copied: tap 1 feeds layer 2
    torch.testing.assert_close(rest, random["fc.weight"] * 0.1, atol=1e-6, rtol=1e-5)


def test_deeper_than_the_target_is_refused():
    with pytest.raises(UserError, match=r"drafter.num_layers=5.*at most 4"):
        drafter_of(toy(), init="target", num_layers=5)


def test_other_sizes_are_refused():
    target = toy()
    config = drafter_config(target.model.config, switches(), 11)
    config.head_dim *= 2
    with pytest.raises(UserError, match=r"shape of self_attn\.q_proj.*init=random"):
        init_from_target(DFlashDraftModel(config), target, 0, [])


@pytest.mark.parametrize("size", [20, 48])
def test_an_mlp_of_another_size_starts_as_the_neurons_both_have(size):
    target = toy()
    named = parameters(drafter_of(target, mlp_size=size))
    copied = parameters(drafter_of(target, init="target", mlp_size=size))
    source = dict(target.layers[-1].named_parameters())["mlp.up_proj.weight"]
    last = f"layers.{drafter_of(target).config.num_hidden_layers - 1}.mlp.up_proj.weight"
    both = min(size, len(source))
    assert len(copied[last]) == size
    assert torch.equal(copied[last][:both], source[:both])
    assert torch.equal(copied[last][both:], named[last][both:])


def test_a_target_of_other_layers_is_refused():
    oracle = OracleTarget()
    config = drafter_config(oracle.model.config, switches(), oracle.design.mask_token_id)
    with pytest.raises(UserError, match=r"train.init='?target"):
        INITIALISERS["target"](DFlashDraftModel(config), oracle, 0, [])


def test_names_not_order_decide():
    target = toy()
    deep = DFlashDraftModel(drafter_config(target.model.config, switches(num_layers=3), 11))
    init_by_name(deep, 7)
    value = named_normal("layers.2.mlp.up_proj.weight", deep.layers[2].mlp.up_proj.weight.shape, 7)
    expected = value * deep.config.initializer_range
    assert torch.equal(deep.layers[2].mlp.up_proj.weight, expected)
