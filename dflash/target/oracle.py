"""A target whose optimum is known, so that a broken drafter cannot hide (pitfalls T-ORACLE1).

Speculative decoding is lossless: a wrong drafter still yields right text, only slowly. This target
makes the loss visible. It counts. From a symbol it goes to

    x[t+1] = (x[t] + 2 key[t] + 1) mod symbols

and the key, which no symbol shows, stays as the prompt set it for as long as the text is the
target's own. A drafter must combine three things for slot k: the anchor's symbol (its embedding),
the key (the target's features) and k. With all three, acceptance is the block size; with a guessed
key, a slot is right once in ``keys``.

**What layers show.** All layers hand on the same content: a code of the symbol that comes next,
a code of the key, and the bits of a hash of all tokens so far. The codes are rows of Hadamard
matrices (entries +1 and -1) and sealed: multiplied by random signs that the layer has for that
hash. The next layer reads the hash and takes the signs off exactly; a drafter would have to learn
thousands of rows of signs by heart. Layer ``tap`` leaves the key open, its neighbours nothing. The
last layer ends with the embedding of the next symbol.

**Why the key is tied to a position.** Steps are odd and ``symbols`` is even, so symbols alternate
in parity. At an odd symbol the key is shown as ``key + keys/2``. Which of the two a feature shows
follows from the anchor's parity and the feature's distance from it: read one position off, it
names a wrong key, and averaged over positions it names none.

**Why the anchor's own feature says more.** A *surprise* is a step that no key makes; it moves the
key by an amount that depends on the step. Text that the target chose has no surprises, but training
rows have them, at anchors only (:meth:`OracleDesign.training_rows`). At such an anchor the features
before it are out of date and only the anchor's own knows the key. A drafter that may see it in
training learns to trust it alone; while decoding it does not exist. A correct drafter is wrong at
surprises, which nothing visible announces, and right everywhere in decoding.

Train on ``training_rows``: there are only ``keys * symbols`` texts without surprises, few enough to
be learned by heart, and then neither a leak nor shifted positions cost anything.

Planted bugs and what they meet:

* tap off by one: sealed features, the key is a guess;
* label shifted by one: symbols never stand still, so every slot is wrong;
* context up to and including the anchor: trained on the anchor's feature, then left without;
* no anchor mask (all context visible): the same, and later features show later keys;
* positions off by one between block and context: the other parity, a wrong key;
* keys and values swapped: what is found by position is no longer what is read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache

from dflash.model.errors import UserError
from dflash.target.config import TargetConfig
from dflash.target.load import Target

EMBEDDING_NORM = 2.0  # after the final norm: logit 2 * sqrt(H) for the next symbol, 0 for others


@dataclass(frozen=True)
class OracleDesign:
    """Sizes of an oracle. Token ids: symbols, then pad, eos and mask, then one id per key."""

    symbols: int = 32
    keys: int = 4
    num_layers: int = 5
    tap: int = 2
    max_positions: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.symbols < 16 or self.symbols & (self.symbols - 1):
            raise UserError.of("oracle.symbols", self.symbols, "a power of two, at least 16")
        if self.keys % 2 or not 2 <= self.keys <= self.symbols // 4:
            raise UserError.of("oracle.keys", self.keys, f"even, 2 to {self.symbols // 4}")
        if not 1 <= self.tap <= self.num_layers - 3:
            raise UserError.of("oracle.tap", self.tap, f"1 to num_layers-3={self.num_layers - 3}")

    @property
    def hidden_size(self) -> int:
        """One half for the next symbol; the other for the key and the hash."""
        return 2 * self.symbols

    @property
    def hash_bits(self) -> int:
        """Bits of the hash of the tokens so far."""
        return min(12, self.symbols // 2)

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
    def first_key_id(self) -> int:
        return self.symbols + 3

    @property
    def vocab_size(self) -> int:
        return self.first_key_id + self.keys

    def prompt(self, key: int, first: int) -> list[int]:
        """The shortest prompt: key token, first symbol."""
        return [self.first_key_id + key, first]

    def answer(self, key: int, first: int, length: int) -> list[int]:
        """What the target says after :meth:`prompt`, in closed form."""
        return [(first + (2 * key + 1) * (j + 1)) % self.symbols for j in range(length)]

    def key_change(self, previous: Tensor, token: Tensor) -> Tensor:
        """What ``token`` after ``previous`` adds to the key: 0 for the steps that keys make."""
        step = (token - previous) % self.symbols
        ordinary = (step % 2 == 1) & (step < 2 * self.keys)
        amount = 1 + (step // 2) % (self.keys - 1)
        both_symbols = (token < self.symbols) & (previous < self.symbols)
        return torch.where(both_symbols & ~ordinary, amount, 0)

    def training_rows(
        self,
        count: int,
        length: int,
        block_size: int,
        generator: torch.Generator,
        surprises: float = 0.2,
    ) -> tuple[Tensor, Tensor]:
        """Rows for training: tokens ``[count, length]`` and anchors ``[count, N]``.

        Anchors stand ``block_size`` apart from a random start on, a share ``surprises`` of them
        surprises of odd step; all other tokens are the target's own choice, so labels are certain.
        """
        width = (length - 2) // block_size - 1
        start = torch.randint(0, block_size, (count, 1), generator=generator)
        anchors = 2 + start + block_size * torch.arange(width)  # [count, N]
        surprise = torch.zeros(count, length, dtype=torch.bool)
        surprise.scatter_(1, anchors, torch.rand(anchors.shape, generator=generator) < surprises)
        odd = torch.randint(self.keys, self.symbols // 2, (count, length), generator=generator)
        key = torch.randint(0, self.keys, (count,), generator=generator)
        first = torch.randint(0, self.symbols, (count,), generator=generator)
        columns = [self.first_key_id + key, first]
        for t in range(2, length):
            step = torch.where(surprise[:, t], 2 * odd[:, t] + 1, 2 * key + 1)
            columns.append((columns[-1] + step) % self.symbols)
            key = (key + self.key_change(columns[-2], columns[-1])) % self.keys
        return torch.stack(columns, dim=1), anchors


class OracleLayer(nn.Module):
    """Takes off the signs of the layer below, applies its rule, puts its own signs on."""

    unseal: Tensor | None  # [hashes, H - bits] of +1 and -1; None: nothing to take off
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
    """Multiply the codes by the row of ``signs`` that the bits after them name."""
    if signs is None:
        return content
    codes, bits = content.split([signs.shape[1], content.shape[-1] - signs.shape[1]], dim=-1)
    powers = 2 ** torch.arange(bits.shape[-1], device=bits.device)
    row = ((bits > 0) * powers).sum(-1)  # [B, T]
    return torch.cat([codes * signs[row].to(codes.dtype), bits], dim=-1)


class ReadTokens(nn.Module):
    """First layer: embedded tokens to content. Earlier tokens come from the cache."""

    embedding: Tensor  # [V, H]
    symbol_codes: Tensor  # [symbols, symbols]
    key_codes: Tensor  # [keys + 1, rest]; the last one names no key
    shares: Tensor  # [positions, V] what a token at a position adds to the hash

    def __init__(self, design: OracleDesign, embedding: Tensor) -> None:
        super().__init__()
        self.design = design
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("symbol_codes", _hadamard(design.symbols), persistent=False)
        width = design.symbols - design.hash_bits
        key_codes = _hadamard(design.symbols // 2)[: design.keys + 1]
        key_codes = nn.functional.pad(key_codes, (0, width - key_codes.shape[1]), value=1.0)
        self.register_buffer("key_codes", key_codes, persistent=False)
        generator = torch.Generator().manual_seed(design.seed + 1)
        shape = (design.max_positions, design.vocab_size)
        shares = torch.randint(0, 2**design.hash_bits, shape, generator=generator)
        self.register_buffer("shares", shares, persistent=False)

    def forward(self, hidden: Tensor, cache: Cache | None) -> Tensor:
        tokens = (hidden.float() @ self.embedding.float().T).argmax(-1)  # [B, T]
        new = tokens.shape[1]
        if cache is not None:
            as_state = tokens[:, None, :, None].float()  # [B, 1, T, 1]
            tokens = cache.update(as_state, as_state, 0)[0][:, 0, :, 0].long()  # [B, S]
        key = self._keys(tokens)[:, -new:]
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        row = self.shares[positions, tokens].cumsum(1)[:, -new:]
        powers = 2 ** torch.arange(self.design.hash_bits, device=row.device)
        bits = 2 * (row[..., None] // powers % 2) - 1
        follows, shown = self._content(tokens[:, -new:], key)
        parts = [self.symbol_codes[follows], self.key_codes[shown], bits]
        return torch.cat([part.to(hidden.dtype) for part in parts], dim=-1)

    def _keys(self, tokens: Tensor) -> Tensor:
        """The key after each token, ``[B, S]``."""
        before = tokens.roll(1, dims=1)
        before[:, 0] = self.design.pad_token_id
        set_to = (tokens - self.design.first_key_id).clamp(min=0)
        changes = self.design.key_change(before, tokens) + set_to
        return changes.cumsum(1) % self.design.keys

    def _content(self, token: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The symbol that follows, and the index of the key code that is shown."""
        design = self.design
        onward = (token + 2 * key + 1) % design.symbols
        shown = (key + design.keys // 2 * (token % 2)) % design.keys
        return (
            torch.where(token >= design.first_key_id, key, onward),
            torch.where(token < design.symbols, shown, design.keys),
        )


class HandOn(nn.Module):
    """Middle layers: content unchanged."""

    def forward(self, content: Tensor, cache: Cache | None) -> Tensor:
        return content


class Answer(nn.Module):
    """Last layer: content to the embedding of the next symbol."""

    embedding: Tensor
    codes: Tensor

    def __init__(self, embedding: Tensor, codes: Tensor) -> None:
        super().__init__()
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("codes", codes, persistent=False)  # [symbols, symbols]

    def forward(self, content: Tensor, cache: Cache | None) -> Tensor:
        symbol_code = content[..., : self.codes.shape[-1]].float()
        return self.embedding[(symbol_code @ self.codes.float().T).argmax(-1)].to(content.dtype)


class OracleForCausalLM(LlamaForCausalLM):
    """A Llama shell (embedding, cache, final norm, tied head) around oracle layers."""

    def __init__(self, design: OracleDesign) -> None:
        super().__init__(_llama_config(design))
        rows = _hadamard(design.hidden_size)[: design.vocab_size]
        embedding = rows * (EMBEDDING_NORM / design.hidden_size**0.5)
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(embedding)
            self.model.norm.weight.fill_(1.0)
        rules: list[nn.Module] = [HandOn() for _ in range(design.num_layers)]
        rules[0] = ReadTokens(design, embedding)
        rules[-1] = Answer(embedding, _hadamard(design.symbols))
        seals: list[Tensor | None] = list(_signs(design))
        seals[-1] = None
        below = [None, *seals[:-1]]
        self.model.layers = nn.ModuleList(map(OracleLayer, rules, below, seals))


def _signs(design: OracleDesign) -> Tensor:
    """``[layers, hashes, H - bits]`` of +1 and -1; the tapped layer's key code stays open."""
    generator = torch.Generator().manual_seed(design.seed)
    shape = (design.num_layers, 2**design.hash_bits, design.hidden_size - design.hash_bits)
    signs = 2 * torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) - 1
    signs[design.tap, :, design.symbols :] = 1
    return signs


def _hadamard(size: int) -> Tensor:
    """``[size, size]`` of +1 and -1 with orthogonal rows (Sylvester), for powers of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix


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
