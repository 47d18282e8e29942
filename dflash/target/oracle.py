"""A target whose optimum is known, so that a broken drafter cannot hide (pitfalls T-ORACLE1).

Speculative decoding is lossless: a wrong drafter still yields right text, only slowly. This target
makes the loss visible. It emits symbols, pairs of a count and a digit (:mod:`oracle_design`):

    count[t+1] = (count[t] + 2 key[t] + 1) mod counts
    digit[t+1] = a pseudo-random function of all tokens up to t - ahead

The key is set by the prompt's key token and shown by no symbol. A drafter must combine, for slot k,
the anchor's count (its embedding), the key (the target's features), k, and the digit (one feature,
an exact distance back). With all of them, acceptance is the block size.

**What layers show.** All layers hand on the same content: the next symbol, the key, the digit of
the symbol ``ahead + 1`` positions later, and the bits of a hash of all tokens so far. All but the
bits are written in rows of Hadamard matrices (entries +1 and -1) and sealed: multiplied by random
signs that the layer has for that hash. The next layer reads the hash and takes the signs off
exactly; a drafter would have to learn thousands of rows of signs by heart. Layer ``tap`` leaves key
and digit open, its neighbours nothing. The last layer ends with the embedding of the next symbol.

**Positions.** Digits are independent of each other: read one position off, a digit is a guess.
Steps of the count are odd, so counts alternate in parity, and at an odd count the key is shown as
``key + keys/2``: which of the two a feature shows follows from its distance to the anchor.

**Why the anchor's own feature says more.** A *surprise* is a step that no key makes; it moves the
key by an amount that depends on the step. Text that the target chose has no surprises, but training
rows have them, at anchors only (:meth:`OracleDesign.training_rows`). At such an anchor the features
before it are out of date and only the anchor's own knows the key. A drafter that may see it in
training learns to trust it alone; while decoding it does not exist. A correct drafter is wrong at
surprises, which nothing visible announces, and right everywhere in decoding.

**What cannot be learned by heart.** A key has many key tokens; training rows use half of them and
:meth:`OracleDesign.prompt` the other half, or the sealed feature of the first token would give the
key away. Train on ``training_rows``, not on the few texts without surprises.

Planted bugs and what they meet:

* tap off by one: sealed features, key and digit are guesses;
* label shifted by one: counts never stand still, so every slot is wrong;
* context up to and including the anchor: trained on the anchor's feature, then left without;
* no anchor mask (all context visible): the same, and later features show later keys;
* positions off by one between block and context: another digit, and the other parity of the key;
* keys and values swapped after training: what is found by position is no longer what is read. (A
  drafter *trained* with the two swapped throughout has only renamed its weights, and is as good.)
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache

from dflash.target.config import TargetConfig
from dflash.target.load import Target
from dflash.target.oracle_design import HASH_BITS, OracleDesign

__all__ = ["OracleDesign", "OracleForCausalLM", "OracleTarget"]

HIDDEN = 64
EMBEDDING_NORM = 2.0  # after the final norm: logit 2 * sqrt(H) for the right symbol
# Width of each part of the content: next count, next digit, shown key, shown digit, hash, rest.
WIDTHS = (16, 8, 8, 8, HASH_BITS, HIDDEN - 40 - HASH_BITS)
SEALED = sum(WIDTHS[:4])
OPEN = slice(sum(WIDTHS[:2]), SEALED)  # what layer ``tap`` does not seal


class OracleLayer(nn.Module):
    """Takes off the signs of the layer below, applies its rule, puts its own signs on."""

    unseal: Tensor | None  # [hashes, SEALED] of +1 and -1; None: nothing to take off
    seal: Tensor | None

    def __init__(self, rule: nn.Module, unseal: Tensor | None, seal: Tensor | None) -> None:
        super().__init__()
        self.rule = rule
        self.register_buffer("unseal", unseal, persistent=False)
        self.register_buffer("seal", seal, persistent=False)

    def forward(self, hidden_states: Tensor, cache: Cache | None = None, **kwargs: Any) -> Tensor:
        """``[B, T, H]`` to ``[B, T, H]``."""
        return _signed(self.rule(_signed(hidden_states, self.unseal), cache), self.seal)


def _signed(content: Tensor, signs: Tensor | None) -> Tensor:
    """Multiply the codes by the row of ``signs`` that the hash names."""
    if signs is None:
        return content
    codes, bits, rest = content.split([SEALED, HASH_BITS, WIDTHS[-1]], dim=-1)
    row = ((bits > 0) * 2 ** torch.arange(HASH_BITS, device=bits.device)).sum(-1)  # [B, T]
    return torch.cat([codes * signs[row].to(codes.dtype), bits, rest], dim=-1)


class ReadTokens(nn.Module):
    """First layer: embedded tokens to content. Earlier tokens come from the cache."""

    embedding: Tensor  # [V, H]

    def __init__(self, design: OracleDesign, embedding: Tensor) -> None:
        super().__init__()
        self.design = design
        self.register_buffer("embedding", embedding, persistent=False)
        for name, width in zip(("count", "digit", "key", "ahead"), WIDTHS, strict=False):
            self.register_buffer(f"{name}_codes", _hadamard(width), persistent=False)

    def forward(self, hidden: Tensor, cache: Cache | None) -> Tensor:
        tokens = (hidden.float() @ self.embedding.float().T).argmax(-1)  # [B, T]
        new = tokens.shape[1]
        if cache is not None:
            as_state = tokens[:, None, :, None].float()  # [B, 1, T, 1]
            tokens = cache.update(as_state, as_state, 0)[0][:, 0, :, 0].long()  # [B, S]
        reading = self.design.read(tokens)
        follows, key, digit, row = (part[:, -new:] for part in reading)
        bits = 2 * (row[..., None] // 2 ** torch.arange(HASH_BITS, device=row.device) % 2) - 1
        parts = [
            self.get_buffer("count_codes")[follows % self.design.counts],
            self.get_buffer("digit_codes")[follows // self.design.counts],
            self.get_buffer("key_codes")[key],
            self.get_buffer("ahead_codes")[digit],
            bits,
            bits.new_ones(*bits.shape[:-1], WIDTHS[-1]),
        ]
        return torch.cat([part.to(hidden.dtype) for part in parts], dim=-1)


class HandOn(nn.Module):
    """Middle layers: content unchanged."""

    def forward(self, content: Tensor, cache: Cache | None) -> Tensor:
        return content


class Answer(nn.Module):
    """Last layer: content to the embedding of the next symbol."""

    embedding: Tensor

    def __init__(self, design: OracleDesign, embedding: Tensor) -> None:
        super().__init__()
        self.counts = design.counts
        self.register_buffer("embedding", embedding, persistent=False)

    def forward(self, content: Tensor, cache: Cache | None) -> Tensor:
        count, digit = content.float().split(WIDTHS, dim=-1)[:2]
        count = (count @ _hadamard(WIDTHS[0]).to(count.device).T).argmax(-1)
        digit = (digit @ _hadamard(WIDTHS[1]).to(digit.device).T).argmax(-1)
        return self.embedding[digit * self.counts + count].to(content.dtype)


class OracleForCausalLM(LlamaForCausalLM):
    """A Llama shell (embedding, cache, final norm, tied head) around oracle layers."""

    def __init__(self, design: OracleDesign) -> None:
        super().__init__(_llama_config(design))
        embedding = _embedding(design) * (EMBEDDING_NORM / HIDDEN**0.5)
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(embedding)
            self.model.norm.weight.fill_(1.0)
        rules: list[nn.Module] = [HandOn() for _ in range(design.num_layers)]
        rules[0], rules[-1] = ReadTokens(design, embedding), Answer(design, embedding)
        seals: list[Tensor | None] = list(_signs(design))
        seals[-1] = None
        below = [None, *seals[:-1]]
        self.model.layers = nn.ModuleList(map(OracleLayer, rules, below, seals))


def _signs(design: OracleDesign) -> Tensor:
    """``[layers, hashes, SEALED]`` of +1 and -1."""
    generator = torch.Generator().manual_seed(design.seed + 1)
    shape = (design.num_layers, 2**HASH_BITS, SEALED)
    signs = 2 * torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) - 1
    signs[design.tap, :, OPEN] = 1
    return signs


def _embedding(design: OracleDesign) -> Tensor:
    """``[V, H]`` of +1 and -1: a half for the digit and one for the count; key tokens random."""
    half = _hadamard(HIDDEN // 2)
    digits, counts = half[: design.digits], half[: design.counts]
    symbols = torch.cat(
        [digits.repeat_interleave(design.counts, 0), counts.repeat(design.digits, 1)], dim=-1
    )
    special = torch.cat([half[-3:], half[-3:]], dim=-1)  # pad, eos, mask
    generator = torch.Generator().manual_seed(design.seed + 2)
    shape = (design.keys * design.variants, HIDDEN)
    key_tokens = 2.0 * torch.randint(0, 2, shape, generator=generator) - 1
    return torch.cat([symbols, special, key_tokens])


def _hadamard(size: int) -> Tensor:
    """``[size, size]`` of +1 and -1 with orthogonal rows (Sylvester), for powers of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix


def _llama_config(design: OracleDesign) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=design.vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=design.num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
        max_position_embeddings=design.max_positions,
        pad_token_id=design.pad_token_id,
        bos_token_id=None,
        eos_token_id=design.eos_token_id,
        tie_word_embeddings=True,
    )


class OracleTarget(Target):
    """The oracle as a :class:`Target` without tokenizer; ``design`` knows what it will say."""

    def __init__(self, design: OracleDesign | None = None) -> None:
        self.design = design or OracleDesign()
        mask = self.design.mask_token_id
        super().__init__(
            config=TargetConfig("oracle", "oracle", mask_token_id=mask, device="cpu"),
            model=OracleForCausalLM(self.design),
            tokenizer=None,
            fingerprint=hashlib.sha256(repr(self.design).encode()).hexdigest()[:16],
            stop_token_ids=(self.design.eos_token_id,),
        )
