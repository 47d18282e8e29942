"""A target whose optimum is known, so that a broken drafter cannot hide (pitfalls T-ORACLE1).

Speculative decoding is lossless: a wrong drafter still yields right text, only slowly. This target
makes the loss visible. It counts: after a key token and a first symbol it emits

    x[t+1] = (x[t] + step[key]) mod symbols,          step = 1, 3, 5, ... (odd)

for ever. The key is fixed by the prompt and cannot be told from any single symbol, so a drafter must
combine three things for slot k: the anchor's symbol (from its embedding), the key (from the target's
features) and k. With all three every slot is determined and acceptance is the block size; with the
key missing, a guess is right once in ``keys``.

What each layer shows. All layers pass on the same *content*, two orthogonal codes: the symbol that
comes next, and the key. Only layer ``tap`` passes it on in the open. The layers around it multiply
it with fixed signs drawn per absolute position and layer; the oracle undoes them exactly, a drafter,
which knows positions only relative to each other, cannot. The last layer's output is the embedding
of the next symbol.

Why each planted bug is visible:

* *Tap off by one*: the neighbours are sealed, the key is missing.
* *Label shifted*: symbols never repeat within ``symbols`` tokens, so a shifted label is a wrong one.
* *Context at the anchor visible in training*: the feature at the anchor shows the first drafted
  symbol itself, the feature before it only shows the anchor, which is known anyway. Reading it off
  is far easier than computing it from anchor and key, so training takes that road, slot 1 is never
  learned, and decoding, which has no feature at the anchor, fails at once.
* *Context mask missing*: the same for every slot.
* *Positions off by one*: steps are odd and ``symbols`` is even, so symbols alternate in parity. At
  odd symbols the key code of ``key + keys/2`` is shown instead of the key's. Which of the two a
  feature shows depends on its distance from the anchor, and reading one off yields another, wrong
  key. Averaging over features tells nothing apart.
* *Keys and values swapped*: content is carried in values at a distance found by keys.

Sequences should be at most ``symbols`` long: later the count repeats and could be copied.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from dflash.model.errors import UserError
from dflash.target.config import TargetConfig
from dflash.target.load import Target

EMBEDDING_NORM = 2.0  # with the final norm, puts 8 logits or more between right and wrong


@dataclass(frozen=True)
class OracleDesign:
    """Sizes of an oracle. Token ids: symbols, then pad, eos and mask, then one id per key."""

    symbols: int = 32
    keys: int = 4
    hidden_size: int = 64
    num_layers: int = 5
    tap: int = 2
    max_positions: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.symbols % 2 or self.keys % 2 or self.symbols < 2 * self.keys:
            raise UserError.of("oracle.symbols", self.symbols, "even, at least 2 * (even) keys")
        if not 1 <= self.tap <= self.num_layers - 3:
            raise UserError.of("oracle.tap", self.tap, f"1 to num_layers-3={self.num_layers - 3}")
        if self.hidden_size < self.vocab_size:
            raise UserError.of(
                "oracle.hidden_size", self.hidden_size, f"at least {self.vocab_size}"
            )

    @property
    def pad_token_id(self) -> int:
        return self.symbols

    @property
    def eos_token_id(self) -> int:
        """Never emitted."""
        return self.symbols + 1

    @property
    def mask_token_id(self) -> int:
        return self.symbols + 2

    @property
    def vocab_size(self) -> int:
        return self.symbols + 3 + self.keys

    def step(self, key: int) -> int:
        """Distance from one symbol to the next."""
        return 2 * key + 1

    def prompt(self, key: int, first: int) -> list[int]:
        """The shortest prompt: key token, first symbol."""
        return [self.symbols + 3 + key, first]

    def answer(self, key: int, first: int, length: int) -> list[int]:
        """What follows :meth:`prompt`, in closed form."""
        return [(first + self.step(key) * (j + 1)) % self.symbols for j in range(length)]


class OracleLayer(nn.Module):
    """Unseals what it is given, computes its part, and seals its output with its own signs."""

    def __init__(self, rule: nn.Module, unseal: Tensor | None, seal: Tensor | None) -> None:
        super().__init__()
        self.rule = rule
        self.register_buffer("unseal", unseal, persistent=False)  # [P, H] of +-1, or None: open
        self.register_buffer("seal", seal, persistent=False)

    def forward(
        self, hidden_states: Tensor, position_ids: Tensor, cache: Any = None, **kwargs: Any
    ) -> Tensor:
        """``[B, T, H]`` to ``[B, T, H]``."""
        content = _signed(hidden_states, self.unseal, position_ids)
        return _signed(self.rule(content, cache), self.seal, position_ids)


def _signed(x: Tensor, signs: Tensor | None, position_ids: Tensor) -> Tensor:
    return x if signs is None else x * signs[position_ids % len(signs)].to(x.dtype)


class ReadToken(nn.Module):
    """Token embedding to content; the key is looked up in the tokens before, through the cache."""

    def __init__(self, design: OracleDesign, embedding: Tensor, codes: Tensor) -> None:
        super().__init__()
        self.design = design
        self.register_buffer("embedding", embedding, persistent=False)  # [V, H]
        self.register_buffer("codes", codes, persistent=False)  # [symbols + keys, H]

    def forward(self, hidden: Tensor, cache: Any) -> Tensor:
        design = self.design
        token = (hidden @ self.embedding.to(hidden.dtype).T).argmax(-1)  # [B, T]
        first_key = design.vocab_size - design.keys
        is_key = token >= first_key
        seen = nn.functional.one_hot((token - first_key).clamp(min=0), design.keys)
        seen = (seen * is_key[..., None])[:, None].to(hidden.dtype)  # [B, 1, T, keys]
        if cache is not None:
            seen, _ = cache.update(seen, seen, 0)  # [B, 1, S, keys]
        # Before position t at most one key token has been seen, so the running sum is its one-hot.
        key = seen.float().cumsum(2)[:, 0, -token.shape[1] :].argmax(-1)  # [B, T]
        following = torch.where(is_key, token - first_key, (token + 2 * key + 1) % design.symbols)
        shown = (key + design.keys // 2 * (token % 2)) % design.keys
        plain = (token < design.symbols)[..., None]  # key and special tokens show no key code
        return self.codes[following].to(hidden.dtype) + plain * self.codes[
            design.symbols + shown
        ].to(hidden.dtype)


class Answer(nn.Module):
    """Content to the embedding of the next symbol."""

    def __init__(self, design: OracleDesign, embedding: Tensor, codes: Tensor) -> None:
        super().__init__()
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("symbol_codes", codes[: design.symbols], persistent=False)

    def forward(self, content: Tensor, cache: Any) -> Tensor:
        following = (content @ self.symbol_codes.to(content.dtype).T).argmax(-1)
        return self.embedding[following].to(content.dtype)


class PassOn(nn.Module):
    """Content unchanged."""

    def forward(self, content: Tensor, cache: Any) -> Tensor:
        return content


class OracleForCausalLM(LlamaForCausalLM):
    """A Llama shell (embedding, cache, final norm, tied head) around oracle layers."""

    def __init__(self, design: OracleDesign) -> None:
        super().__init__(_llama_config(design))
        generator = torch.Generator().manual_seed(design.seed)
        embedding = _orthonormal(design.hidden_size, generator) * EMBEDDING_NORM
        codes = _orthonormal(design.hidden_size, generator) * design.hidden_size**0.5
        embedding = embedding[: design.vocab_size].contiguous()
        codes = codes[: design.symbols + design.keys].contiguous()
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(embedding)
            self.model.norm.weight.fill_(1.0)
        last = design.num_layers - 1
        shape = (design.num_layers, design.max_positions, design.hidden_size)
        signs = torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1
        seals = [None if i in (design.tap, last) else signs[i] for i in range(design.num_layers)]
        rules: list[nn.Module] = [PassOn() for _ in range(design.num_layers)]
        rules[0] = ReadToken(design, embedding, codes)
        rules[last] = Answer(design, embedding, codes)
        self.model.layers = nn.ModuleList(
            OracleLayer(rule, seals[i - 1] if i else None, seals[i]) for i, rule in enumerate(rules)
        )


def _llama_config(design: OracleDesign) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=design.vocab_size,
        hidden_size=design.hidden_size,
        intermediate_size=2 * design.hidden_size,
        num_hidden_layers=design.num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=design.hidden_size // 4,
        max_position_embeddings=design.max_positions,
        pad_token_id=design.pad_token_id,
        bos_token_id=None,
        eos_token_id=design.eos_token_id,
        tie_word_embeddings=True,
    )


def _orthonormal(size: int, generator: torch.Generator) -> Tensor:
    """``[size, size]`` random rotation."""
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[
        0
    ].float()


class OracleTarget(Target):
    """The oracle as a :class:`Target` without tokenizer; ``design`` says what it will emit."""

    def __init__(self, design: OracleDesign | None = None) -> None:
        self.design = design or OracleDesign()
        config = TargetConfig(
            "oracle", "oracle", mask_token_id=self.design.mask_token_id, device="cpu"
        )
        identity = hashlib.sha256(repr(self.design).encode()).hexdigest()[:16]
        super().__init__(
            config, OracleForCausalLM(self.design), None, identity, (self.design.eos_token_id,)
        )
