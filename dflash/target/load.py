"""Loading a frozen target and the few things the rest of the lab asks of it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from dflash.model.errors import UserError
from dflash.target.config import TargetConfig
from dflash.target.packaged import converted_package
from dflash.target.stamps import digest_of, stamp_directory
from dflash.target.taps import LastTapReached, TapRecorder, decoder_of, layers_of
from dflash.target.template import ChatTemplate


@dataclass(frozen=True)
class Origin:
    """Where the weights lie, and what names them: a content hash, or the hub's commit."""

    location: str
    revision: str | None
    identity: str


@dataclass
class Target:
    """A frozen language model with its tokenizer.

    ``fingerprint`` names the weights and the dtype in store keys. ``tokenizer`` is ``None`` for
    models without text, such as the oracle; then ``encode_chat`` and ``decode`` raise.
    """

    config: TargetConfig
    model: Any
    tokenizer: Any
    fingerprint: str
    stop_token_ids: tuple[int, ...]
    layers: nn.ModuleList = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)
        self.layers = layers_of(self.model)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, which may exceed the tokenizer's vocabulary (padding rows)."""
        return int(self.embedding.weight.shape[0])

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def embedding(self) -> Any:
        """The model's own input embedding, never a copy."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> Any:
        """The model's own output projection, never a copy (same storage if tied)."""
        return self.model.get_output_embeddings()

    @cached_property
    def template(self) -> ChatTemplate:
        if self.tokenizer is None:
            raise UserError.of("target.name", self.config.name, "a target that has a tokenizer")
        return ChatTemplate(self.tokenizer, self.config.thinking)

    @property
    def template_hash(self) -> str:
        """Hash of the chat template and thinking mode; ``none`` where there is no tokenizer."""
        return "none" if self.tokenizer is None else self.template.hash

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of the conversation and of the header of the answer to come."""
        return self.template.prompt_ids(messages)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, special tokens included."""
        return str(self.template.tokenizer.decode([int(token) for token in ids]))

    @torch.no_grad()
    def features(
        self, input_ids: Tensor, taps: Sequence[int], attention_mask: Tensor | None = None
    ) -> Tensor:
        """Outputs of the tapped layers, ``[B, T, F*H]``; layers above the last tap do not run.

        Args:
            input_ids: ``[B, T]`` on any device.
            attention_mask: ``[B, T]``, 0 at padding. Positions are counted over real tokens.
                Right-padded rows do not need it: no real token sees what follows it.
        """
        inputs: dict[str, Tensor] = {"input_ids": input_ids.to(self.device)}
        if attention_mask is not None:
            mask = attention_mask.to(self.device)
            inputs["attention_mask"] = mask
            inputs["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        with TapRecorder(self.model, taps, stop_after_last=True) as recorder:
            with contextlib.suppress(LastTapReached):  # layers above and the head are not needed
                decoder_of(self.model)(**inputs, use_cache=False)
            return recorder.features()


def context_limit(model: Any) -> int | None:
    """Positions the model was made for, or None where its config does not say."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def load_target(config: TargetConfig, cache_dir: Path) -> Target:
    """Load a target, frozen and in eval mode.

    Args:
        cache_dir: where packaged weights are converted to, and content hashes are remembered.

    Raises:
        UserError: the source is missing, unreadable or incomplete, or the device is not there.
    """
    device = device_of(config.device)
    origin = _resolve(config, Path(cache_dir))
    common = {"revision": origin.revision, "trust_remote_code": config.trust_remote_code}
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            origin.location,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
            **common,
        )
        tokenizer = AutoTokenizer.from_pretrained(origin.location, **common)
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(config, error) from error
    if lost := sorted(report["missing_keys"]) + sorted(report["mismatched_keys"]):
        # transformers would go on with random values for these.
        allowed = f"a model whose weights are complete ({len(lost)} missing, first {lost[0]})"
        raise UserError.of("target.source", config.source, allowed)
    identity = hashlib.sha256(f"{origin.identity} {config.dtype}".encode()).hexdigest()[:16]
    stops = stop_tokens(model, tokenizer)
    return Target(config, model.to(device), tokenizer, identity, stops)


def stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer: those of the generation config, and the tokenizer's own."""
    configured = model.generation_config.eos_token_id
    if configured is None:
        configured = model.config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({*ids, tokenizer.eos_token_id} - {None}))


def device_of(name: str) -> torch.device:
    """The device that ``target.device`` means on this machine.

    Raises:
        UserError: it is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        present = torch.cuda.device_count()
        raise UserError.of("target.device", name, f"auto or cpu ({present} CUDA devices here)")
    return device


def _resolve(config: TargetConfig, cache_dir: Path) -> Origin:
    """Find the weights without loading them."""
    source = config.source
    if source.startswith("package:"):
        directory, identity = converted_package(source.removeprefix("package:"), cache_dir)
        return Origin(str(directory), None, identity)
    directory = Path(source).expanduser()
    if directory.is_dir():
        memory = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
        stamps = stamp_directory(
            directory, ("*.safetensors", "config.json"), cache_dir / "stamps" / f"{memory}.json"
        )
        return Origin(str(directory), None, digest_of(stamps))
    commit = hub_commit(config)
    return Origin(source, commit, f"{source}@{commit}")


def hub_commit(config: TargetConfig) -> str:
    """The commit that ``target.source`` and ``target.revision`` mean at this moment.

    Raises:
        UserError: neither a directory nor a hub id, or a hub that gives no such model.
    """
    source = config.source
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith("."):
        allowed = "package:<name>, a directory that exists, or a hub id"
        raise UserError.of("target.source", source, allowed)
    try:
        described = AutoConfig.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise _unreadable(config, error) from error
    commit = getattr(described, "_commit_hash", None)
    if commit is None:
        raise UserError.of("target.source", source, "a hub model with a commit to name it by")
    return str(commit)


def _unreadable(config: TargetConfig, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:240]
    allowed = f"package:<name>, a directory or a hub id that can be read ({reason})"
    return UserError.of("target.source", config.source, allowed)
