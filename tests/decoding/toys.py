"""Toy targets and drafters. Nothing is trained: a vocabulary of six tokens makes matches common."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dflash.model import DFlashDraftModel, DrafterSwitches, drafter_config, parse_dataclass
from dflash.target import TapRecorder

VOCAB, MASK = 6, 5


@dataclasses.dataclass(frozen=True)
class Answer:
    """The part of a rollout that replay reads."""

    prompt_ids: np.ndarray
    answer_ids: np.ndarray
    prompt_id: str = "p"
    domain: str = "toy"
    turn: int = 0


@dataclasses.dataclass(frozen=True)
class Rows:
    """Features of whole sequences, in memory."""

    rows: list[Tensor]

    def row(self, index: int) -> Tensor:
        return self.rows[index]


def toy_target(
    family: str = "llama", tied: bool = True, seed: int = 0, layers: int = 4, vocab: int = VOCAB
) -> PreTrainedModel:
    """A random causal LM with two query heads per key head."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "initializer_range": 0.5,
    }
    torch.manual_seed(seed)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**sizes)).eval()


def toy_drafter(
    target: PreTrainedModel, seed: int = 0, mask_token_id: int = MASK, **switches: Any
) -> DFlashDraftModel:
    """A random drafter; keyword arguments are (nested) switches."""
    given = {"num_layers": 2, "block_size": 4, "features": {"taps": [0, 2]}, **switches}
    parsed = parse_dataclass(DrafterSwitches, given, "drafter")
    torch.manual_seed(100 + seed)
    drafter = DFlashDraftModel(drafter_config(target.config, parsed, mask_token_id)).eval()
    for parameter in drafter.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3)  # context and block both have a say
    if parsed.vocab != "full":
        drafter.set_vocab(torch.arange(int(parsed.vocab.removeprefix("top:"))))
    return drafter


def toy_prompt(length: int, seed: int = 0) -> Tensor:
    """Random token ids other than the mask token. ``[1, length]``"""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, MASK, (1, length)))


@torch.inference_mode()
def greedy(target: PreTrainedModel, prompt: Tensor, count: int) -> list[int]:
    """The target's own continuation, the whole prefix anew for every token."""
    tokens = prompt[0].tolist()
    for _ in range(count):
        tokens.append(int(target(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[prompt.shape[1] :]


@torch.inference_mode()
def features_of(target: PreTrainedModel, drafter: DFlashDraftModel, tokens: list[int]) -> Tensor:
    """Tapped states of a whole sequence. ``[T, F*H]``"""
    with TapRecorder(target, drafter.target_layer_ids) as taps:
        target(torch.tensor([tokens]), use_cache=False)
        return taps.features()[0]


def answered(
    target: PreTrainedModel, drafter: DFlashDraftModel, prompt: Tensor, count: int
) -> tuple[Answer, Tensor]:
    """The target's greedy answer to a prompt, and the features of both."""
    answer = greedy(target, prompt, count)
    sequence = prompt[0].tolist() + answer
    return Answer(prompt[0].numpy(), np.array(answer)), features_of(target, drafter, sequence)


class ScriptedDrafter(nn.Module):
    """Proposes what a script says for each absolute position, whatever it is shown."""

    reads_features = False
    dtype = torch.float32

    def __init__(self, script: list[int], block_size: int) -> None:
        super().__init__()
        self.script, self.block_size = torch.tensor(script), block_size
        self.device = self.script.device

    def embed_block(self, anchor_ids: Tensor, embedding: nn.Module) -> Tensor:
        return embedding(anchor_ids)[..., None, :].repeat_interleave(self.block_size, dim=-2)

    def context_of(self, token_ids: Tensor, features: None, embedding: nn.Module) -> Tensor:
        return embedding(token_ids)

    def forward(self, position_ids: Tensor, noise_embedding: Tensor, **kwargs: Any) -> Tensor:
        return position_ids[:, -noise_embedding.shape[1] :, None].float()

    def draft_logits(self, hidden: Tensor, head: nn.Module) -> Tensor:
        past_the_end = torch.zeros(64, dtype=torch.long)
        script = torch.cat([self.script, past_the_end])
        return nn.functional.one_hot(script[hidden[..., 0].long()], VOCAB).float()

    def to_token_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids
