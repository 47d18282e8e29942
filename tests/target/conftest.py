"""Toy targets on disk, the way a user's own model would lie there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash.target import Target, TargetConfig, load_target

SPECIAL = ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>", "<user>", "<assistant>", "<think>")
# Like Qwen3's: with thinking off, an empty thought belongs to the header of the answer.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if not enable_thinking %}<think>{% endif %}"
    "{% endif %}"
)
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def toy_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per byte of printable ASCII, plus the special ones."""
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    vocab = {token: index for index, token in enumerate([*SPECIAL, *letters])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        additional_special_tokens=list(SPECIAL[4:]),
    )
    tokenizer.chat_template = template
    return tokenizer


def toy_model(family: str = "llama", tied: bool = True, layers: int = 6) -> Any:
    """Random weights, under 0.1M parameters."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(0)
    config = config_class(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    return model_class(config).eval()


@pytest.fixture
def save_toy(tmp_path: Path) -> Callable[..., Path]:
    """Writes a toy model with its tokenizer and returns the directory."""

    def save(
        family: str = "llama", tied: bool = True, template: str | None = TEMPLATE, name: str = "toy"
    ) -> Path:
        directory = tmp_path / name
        toy_model(family, tied).save_pretrained(directory)
        toy_tokenizer(template).save_pretrained(directory)
        return directory

    return save


@pytest.fixture
def load_toy(save_toy: Callable[..., Path], tmp_path: Path) -> Callable[..., Target]:
    """The same, loaded as a target."""

    def load(family: str = "llama", tied: bool = True, **config: Any) -> Target:
        source = str(save_toy(family, tied))
        return load_target(
            TargetConfig(name="toy", source=source, device="cpu", **config), tmp_path / "cache"
        )

    return load


@pytest.fixture
def tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Makes toy tokenizers, by default with a chat template."""
    return toy_tokenizer
