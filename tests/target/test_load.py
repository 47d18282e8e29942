import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.model.errors import UserError
from dflash.target import Target, TargetConfig, load_target
from dflash.target.load import stop_tokens

Save = Callable[..., Path]
Load = Callable[..., Target]


def refused(config: TargetConfig, cache: Path) -> str:
    with pytest.raises(UserError, match=r"target\.source=|target\.device=") as caught:
        load_target(config, cache)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_head_and_embedding_are_the_models_own_storage(
    load_toy: Load, family: str, tied: bool
) -> None:
    target = load_toy(family, tied)
    assert target.embedding.weight.data_ptr() == target.model.model.embed_tokens.weight.data_ptr()
    assert target.head.weight.data_ptr() == target.model.lm_head.weight.data_ptr()
    assert (target.head.weight.data_ptr() == target.embedding.weight.data_ptr()) is tied
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (6, 32, 128)


def test_target_is_frozen(load_toy: Load) -> None:
    target = load_toy()
    assert not target.model.training
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    assert not target.features(torch.tensor([[9, 10]]), [0]).requires_grad


def test_chat_round_trip_and_stop_tokens(load_toy: Load) -> None:
    target = load_toy(thinking=True)
    ids = target.encode_chat([{"role": "user", "content": "2 + 2?"}])
    assert target.decode(ids) == "<user>2 + 2?<eos><assistant>"
    assert target.stop_token_ids == (2,)
    target.model.generation_config.eos_token_id = [7, 2]
    assert stop_tokens(target.model, target.tokenizer) == (2, 7)


def test_bfloat16(load_toy: Load) -> None:
    target = load_toy(dtype="bfloat16")
    assert target.dtype == torch.bfloat16
    assert target.features(torch.tensor([[9, 10]]), [0]).dtype == torch.bfloat16


def test_fingerprint_follows_bytes_and_dtype_not_the_place(save_toy: Save, tmp_path: Path) -> None:
    first = save_toy()
    copied = Path(shutil.copytree(first, tmp_path / "copy"))

    def fingerprint(source: Path, **config: str) -> str:
        return load_target(TargetConfig("t", str(source), **config), tmp_path / "c").fingerprint

    original = fingerprint(first)
    assert fingerprint(first) == fingerprint(copied) == original
    assert fingerprint(first, dtype="bfloat16") != original
    weights = copied / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, weights, metadata={"format": "pt"})
    assert fingerprint(copied) != original


def test_missing_directory_and_unknown_package(tmp_path: Path) -> None:
    message = refused(TargetConfig("t", str(tmp_path / "nowhere")), tmp_path)
    assert "nowhere" in message
    message = refused(TargetConfig("t", "package:no-such-thing"), tmp_path)
    assert "pip install --no-deps no-such-thing" in message


def test_hub_id_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refused(TargetConfig("t", "dflash-lab-tests/not-there"), tmp_path)
    assert "dflash-lab-tests/not-there" in message


def test_missing_weights_never_become_random(save_toy: Save, tmp_path: Path) -> None:
    directory = save_toy()
    weights = directory / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.3.self_attn.q_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    message = refused(TargetConfig("t", str(directory)), tmp_path / "c")
    assert "model.layers.3.self_attn.q_proj.weight" in message


def test_truncated_weights(save_toy: Save, tmp_path: Path) -> None:
    directory = save_toy()
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(TargetConfig("t", str(directory)), tmp_path / "c")


def test_only_safetensors_are_read(save_toy: Save, tmp_path: Path) -> None:
    directory = save_toy()
    weights = directory / "model.safetensors"
    torch.save(load_file(weights), directory / "pytorch_model.bin")
    weights.unlink()
    refused(TargetConfig("t", str(directory)), tmp_path / "c")


def test_absent_device(save_toy: Save, tmp_path: Path) -> None:
    device = f"cuda:{torch.cuda.device_count()}"
    assert device in refused(TargetConfig("t", str(save_toy()), device=device), tmp_path)
