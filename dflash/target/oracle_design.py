"""What the oracle says and why: pure functions of token ids. See :mod:`dflash.target.oracle`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dflash.model.errors import UserError

HASH_BITS = 12


class Reading(NamedTuple):
    """What the oracle makes of each token of ``[B, S]``, given those before it."""

    follows: Tensor  # the symbol that comes next
    shown_key: Tensor  # which key the open layer shows; ``keys`` at tokens that show none
    shown_digit: Tensor  # the digit of the symbol ``ahead + 1`` positions later
    hash: Tensor  # hash of all tokens so far


@dataclass(frozen=True)
class OracleDesign:
    """Sizes of an oracle.

    A symbol is a pair, digit and count, with id ``digit * counts + count``. Token ids: symbols,
    then pad, eos and mask, then ``variants`` key tokens for each key. ``ahead`` must be at least
    ``block_size - 1`` of the drafters to be tested.
    """

    counts: int = 16
    digits: int = 4
    keys: int = 4
    ahead: int = 3
    variants: int = 256
    num_layers: int = 5
    tap: int = 2
    max_positions: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.counts % 2 or not 8 <= self.counts <= 16:
            raise UserError.of("oracle.counts", self.counts, "even, 8 to 16")
        if not 2 <= self.digits <= 8:
            raise UserError.of("oracle.digits", self.digits, "2 to 8")
        if self.keys % 2 or not 2 <= self.keys <= self.counts // 4:
            raise UserError.of("oracle.keys", self.keys, f"even, 2 to {self.counts // 4}")
        if self.variants % 2 or self.variants < 2:
            raise UserError.of("oracle.variants", self.variants, "even, at least 2")
        if not 1 <= self.tap <= self.num_layers - 3:
            raise UserError.of("oracle.tap", self.tap, f"1 to num_layers-3={self.num_layers - 3}")

    @property
    def symbols(self) -> int:
        return self.counts * self.digits

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
        return self.first_key_id + self.keys * self.variants

    def prompt(self, key: int, first: int) -> list[int]:
        """The shortest prompt: one of the odd variants of the key token, then a symbol."""
        variant = 2 * ((key * self.symbols + first) % (self.variants // 2)) + 1
        return [self.first_key_id + variant * self.keys + key, first]

    def answer(self, key: int, first: int, length: int) -> list[int]:
        """What the target says after :meth:`prompt`."""
        tokens = torch.tensor([self.prompt(key, first)])
        for _ in range(length):
            tokens = torch.cat([tokens, self.read(tokens).follows[:, -1:]], dim=1)
        return tokens[0, 2:].tolist()

    def read(self, tokens: Tensor) -> Reading:
        """Apply the rules to whole texts ``[B, S]``."""
        shares, digit_of = _tables(self)
        # A row may be padded, with any special token, on either side.
        real = (tokens < self.symbols) | (tokens >= self.first_key_id)
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        share = shares.to(tokens.device)[positions, tokens] * real
        so_far = share.cumsum(1) % 2**HASH_BITS
        shown_digit = digit_of.to(tokens.device)[so_far] * real
        # The next digit was shown ``ahead`` positions ago; texts begin with digit 0.
        digit = torch.nn.functional.pad(shown_digit, (self.ahead, 0))[:, : tokens.shape[1]]
        key, is_symbol = self._keys(tokens), tokens < self.symbols
        count = torch.where(is_symbol, tokens % self.counts + 2 * key + 1, key) % self.counts
        shown_key = (key + self.keys // 2 * (tokens % 2)) % self.keys
        return Reading(
            follows=digit * self.counts + count,
            shown_key=torch.where(is_symbol, shown_key, self.keys),
            shown_digit=shown_digit,
            hash=so_far,
        )

    def _keys(self, tokens: Tensor) -> Tensor:
        """The key after each token: set by key tokens, moved by surprises. ``[B, S]``"""
        before = tokens.roll(1, dims=1)
        before[:, 0] = self.pad_token_id
        step = (tokens - before) % self.counts  # counts divides every digit's contribution
        ordinary = (step % 2 == 1) & (step < 2 * self.keys)
        surprise = (tokens < self.symbols) & (before < self.symbols) & ~ordinary
        moved = torch.where(surprise, 1 + step // 2 % (self.keys - 1), 0)
        set_to = (tokens - self.first_key_id).clamp(min=0)
        return (moved + set_to).cumsum(1) % self.keys

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
        drawn = torch.rand(anchors.shape, generator=generator) < surprises
        surprise = torch.zeros(count, length, dtype=torch.bool).scatter(1, anchors, drawn)
        odd = torch.randint(self.keys, self.counts // 2, (count, length), generator=generator)
        key = torch.randint(0, self.keys, (count,), generator=generator)
        variant = 2 * torch.randint(0, self.variants // 2, (count,), generator=generator)
        first = torch.randint(0, self.symbols, (count,), generator=generator)
        tokens = torch.stack([self.first_key_id + variant * self.keys + key, first], dim=1)
        for t in range(2, length):
            own = self.read(tokens).follows[:, -1]
            other = own - own % self.counts + (tokens[:, -1] + 2 * odd[:, t] + 1) % self.counts
            chosen = torch.where(surprise[:, t], other, own)
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
        return tokens, anchors


@functools.lru_cache(maxsize=8)
def _tables(design: OracleDesign) -> tuple[Tensor, Tensor]:
    """What a token at a position adds to the hash ``[positions, V]``; the digit of each hash."""
    generator = torch.Generator().manual_seed(design.seed)
    shape = (design.max_positions, design.vocab_size)
    shares = torch.randint(0, 2**HASH_BITS, shape, generator=generator)
    return shares, torch.randint(0, design.digits, (2**HASH_BITS,), generator=generator)
