"""Config and checkpoint: the public layout, strict loading, and every switch back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen3Config

from dflash.model import (
    DFlashDraftModel,
    DrafterSwitches,
    UserError,
    drafter_config,
    switches_of,
)
from tests.model.toys import (
    AXES,
    HIDDEN,
    MASK_TOKEN,
    VOCAB,
    pairwise_combinations,
    target_config,
    toy_drafter,
    toy_switches,
)

PER_LAYER = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "input_layernorm",
    "post_attention_layernorm",
]


def test_default_parameters_carry_exactly_the_public_names() -> None:
    draft = toy_drafter(toy_switches())
    expected = {f"layers.{layer}.{name}.weight" for layer in range(2) for name in PER_LAYER}
    expected |= {"norm.weight", "fc.weight", "hidden_norm.weight"}
    assert set(draft.state_dict()) == expected


def test_default_config_file_is_the_public_one(tmp_path: Path) -> None:
    draft = toy_drafter(DrafterSwitches())
    draft.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["dflash_config"] == {
        "target_layer_ids": [1, 3, 5, 7, 9],
        "mask_token_id": MASK_TOKEN,
        "block_size": 16,
    }
    assert written["architectures"] == ["DFlashDraftModel"]
    assert written["block_size"] == 16
    assert written["num_target_layers"] == 12
    assert written["num_hidden_layers"] == 5
    assert written["model_type"] == "qwen3"
    assert "dflash_lab" not in written


def test_only_switches_off_their_default_are_written() -> None:
    switches = toy_switches(attention__qk_norm="none", rope__context=False)
    config = drafter_config(target_config(), switches, None)
    assert config.dflash_lab == {"attention": {"qk_norm": "none"}, "rope": {"context": False}}
    assert "mask_token_id" not in config.dflash_config


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"features__taps": (2, 7)},
        {"features__taps": (1, 3, 5, 7, 9)},
        {"features__taps": "last"},
        {"mask_embedding": "learned", "vocab": "top:9"},
    ],
)
def test_switches_survive_the_file(tmp_path: Path, more: dict[str, Any]) -> None:
    switches = toy_switches(**more)
    drafter_config(target_config(), switches, None).save_pretrained(tmp_path)
    assert switches_of(Qwen3Config.from_pretrained(tmp_path)) == switches


def test_another_mlp_survives_the_file_and_must_agree_with_it(tmp_path: Path) -> None:
    draft = toy_drafter(toy_switches(mlp_size=20))
    draft.save_pretrained(tmp_path)
    loaded = DFlashDraftModel.from_pretrained(tmp_path)
    assert loaded.switches.mlp_size == 20
    assert loaded.layers[0].mlp.up_proj.weight.shape == (20, HIDDEN)
    loaded.config.intermediate_size = 24
    with pytest.raises(UserError, match="intermediate_size=24 is not valid; allowed: 20"):
        switches_of(loaded.config)


def test_every_pair_of_switches_survives_the_config() -> None:
    for switches in pairwise_combinations(AXES):
        assert switches_of(drafter_config(target_config(), switches, None)) == switches


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"kv__projection": "separate"},
        {"kv__source": "draft"},
        {"attention__qk_norm": "none", "features__norm": False},
        {"mask_embedding": "learned"},
    ],
)
def test_weights_survive_the_file(tmp_path: Path, more: dict[str, Any]) -> None:
    draft = toy_drafter(toy_switches(**more))
    draft.save_pretrained(tmp_path)
    loaded = DFlashDraftModel.from_pretrained(tmp_path)
    assert loaded.switches == draft.switches
    assert loaded.state_dict().keys() == draft.state_dict().keys()
    for name, tensor in draft.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def edit_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers__0__self_attn__q_norm__weight": None}, "q_norm"),
        ({"hidden_norm__weight": None}, "hidden_norm"),
        ({"layers__9__mlp__up_proj__weight": torch.zeros(2)}, "layers.9"),
        ({"lm_head__weight": torch.zeros(2, 2)}, "lm_head"),
    ],
)
def test_missing_and_unexpected_tensors_raise(
    tmp_path: Path, changes: dict[str, torch.Tensor | None], words: str
) -> None:
    toy_drafter(toy_switches()).save_pretrained(tmp_path)
    edit_tensors(tmp_path, **changes)
    with pytest.raises(UserError, match=words):
        DFlashDraftModel.from_pretrained(tmp_path)


def test_a_tensor_of_another_shape_raises(tmp_path: Path) -> None:
    toy_drafter(toy_switches()).save_pretrained(tmp_path)
    edit_tensors(tmp_path, norm__weight=torch.ones(HIDDEN + 1))
    with pytest.raises(UserError, match=r"mismatched_keys=.*norm\.weight"):
        DFlashDraftModel.from_pretrained(tmp_path)


def test_draft_vocabulary_is_stored_and_checked(tmp_path: Path) -> None:
    draft = toy_drafter(toy_switches(vocab="top:4"))
    with pytest.raises(UserError, match="set_vocab"):
        draft.draft_logits(torch.randn(2, HIDDEN), torch.nn.Linear(HIDDEN, VOCAB))
    draft.set_vocab(torch.tensor([7, 3, 30, 1]))
    draft.save_pretrained(tmp_path)
    loaded = DFlashDraftModel.from_pretrained(tmp_path)
    assert loaded.vocab_index is not None
    assert loaded.vocab_index.tolist() == [7, 3, 30, 1]
    assert loaded.to_token_ids(torch.tensor([[2, 0]])).tolist() == [[30, 7]]
    edit_tensors(tmp_path, d2t=torch.tensor([3, 7, 30, 1]))  # the same shape, another table
    with pytest.raises(UserError, match="d2t_sha256"):
        DFlashDraftModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("bias", [True, False])
def test_draft_logits_are_rows_of_the_heads(bias: bool) -> None:
    head, hidden = torch.nn.Linear(HIDDEN, VOCAB, bias=bias), torch.randn(2, 3, HIDDEN)
    full = toy_drafter(toy_switches())
    assert torch.equal(full.draft_logits(hidden, head), head(hidden))
    assert full.to_token_ids(torch.tensor([5])).tolist() == [5]
    few = toy_drafter(toy_switches(vocab="top:3"))
    few.set_vocab(torch.tensor([9, 0, 4]))
    torch.testing.assert_close(few.draft_logits(hidden, head), head(hidden)[..., [9, 0, 4]])


def test_the_rows_of_a_head_are_gathered_once_and_anew_when_head_or_vocabulary_change() -> None:
    head, hidden = torch.nn.Linear(HIDDEN, VOCAB).requires_grad_(False), torch.randn(3, HIDDEN)
    few = toy_drafter(toy_switches(vocab="top:3"))
    few.set_vocab(torch.tensor([9, 0, 4]))
    with torch.inference_mode():
        rows, _ = few.head_rows(head)
    assert few.head_rows(head)[0] is rows
    (few.draft_logits(hidden.requires_grad_(), head)).sum().backward()  # after inference mode too
    few.set_vocab(torch.tensor([1, 2, 3]))
    torch.testing.assert_close(few.head_rows(head)[0], head.weight[[1, 2, 3]])
    head.weight.mul_(2)
    torch.testing.assert_close(few.head_rows(head)[0], head.weight[[1, 2, 3]])
    other = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
    torch.testing.assert_close(few.draft_logits(hidden, other), other(hidden)[..., [1, 2, 3]])


@pytest.mark.parametrize(
    ("ids", "words"), [([1, 2], "shape"), ([1, 2, 2], "twice"), ([1, 2, VOCAB], f"{VOCAB - 1}")]
)
def test_bad_vocabularies_are_refused(ids: list[int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        toy_drafter(toy_switches(vocab="top:3")).set_vocab(torch.tensor(ids))
    with pytest.raises(UserError, match="top:<n>"):
        toy_drafter(toy_switches()).set_vocab(torch.tensor(ids))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("is_causal", True),
        ("final_logit_softcapping", 30.0),
        ("input_embedding_scale", 2.0),
        ("dflash_config", {"selector_rank": 8}),
        ("dflash_config", {"conv_kernel_size": 2}),
        ("dflash_config", {"target_layers": [1, 2]}),
        ("dflash_lab", {"attention": {"qknorm": "q"}}),
        ("dflash_lab", {"block_size": 4}),
        ("dflash_lab", {"features": {"taps": [1, 2]}}),
    ],
)
def test_fields_this_model_does_not_have_are_refused(field: str, value: Any) -> None:
    config = drafter_config(target_config(), toy_switches(), MASK_TOKEN)
    if field == "dflash_config":
        value = {**config.dflash_config, **value}
    setattr(config, field, value)
    with pytest.raises(UserError):
        DFlashDraftModel(config)


def test_partial_rotary_embeddings_are_refused() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    with pytest.raises(UserError, match="partial_rotary_factor"):
        drafter_config(target_config(rope_parameters=rope), toy_switches(), None)


def test_public_configs_with_the_block_size_inside_load() -> None:
    config = drafter_config(target_config(), toy_switches(block_size=6), MASK_TOKEN)
    del config.block_size
    assert DFlashDraftModel(config).block_size == 6
    config.dflash_config.pop("block_size")
    assert DFlashDraftModel(config).block_size == 16
    config.block_size = 10
    assert DFlashDraftModel(config).block_size == 10


def test_drafters_take_rope_and_heads_from_a_llama() -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    target = LlamaConfig(
        hidden_size=24,
        intermediate_size=32,
        num_attention_heads=3,
        num_key_value_heads=1,
        num_hidden_layers=9,
        vocab_size=40,
        rope_parameters=rope,
        rms_norm_eps=1e-5,
    )
    config = drafter_config(target, toy_switches(), None)
    assert (config.head_dim, config.num_key_value_heads, config.vocab_size) == (8, 1, 40)
    assert config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_type"] == "llama3"
    config.rope_parameters["factor"] = 1.0
    assert target.rope_parameters["factor"] == 8.0
    assert DFlashDraftModel(config).rotary_emb.rope_type == "llama3"
