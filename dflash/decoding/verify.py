"""Verification: what the target makes of a proposed block.

Sample-and-match (paper §1.4): the target draws its own token at every position of the block, and a
drafted token is accepted iff it equals the target's draw. Every committed token is a draw of the
target's given the committed prefix, so the rule is lossless at any temperature and for any
proposal; at temperature 0 the draw is the argmax.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.model.errors import UserError

__all__ = [
    "VERIFIERS",
    "MatchVerifier",
    "Verdict",
    "count_emitted",
    "draw_tokens",
    "leading_matches",
]


def draw_tokens(
    logits: Tensor, temperature: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """One token per row: the argmax at temperature 0, else a draw from softmax(logits/temperature).

    Args:
        logits: ``[..., V]``.
        temperature: at least 0.
        generator: source of randomness, on the logits' device; None is torch's global generator.

    Returns:
        Token ids, long. ``[...]``
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    # fp32: half-precision probabilities over a large vocabulary do not sum to one.
    probabilities = torch.softmax(logits.float() / temperature, dim=-1)
    flat = probabilities.reshape(-1, probabilities.shape[-1])
    return torch.multinomial(flat, 1, generator=generator).view(logits.shape[:-1])


def leading_matches(proposal: Sequence[int], drawn: Sequence[int]) -> int:
    """Length of the leading run of ``proposal`` that equals ``drawn``, position by position."""
    for index, (proposed, own) in enumerate(zip(proposal, drawn, strict=False)):
        if proposed != own:
            return index
    return min(len(proposal), len(drawn))


def count_emitted(tokens: Sequence[int], room: int, stop_ids: Collection[int]) -> tuple[int, bool]:
    """How many of a step's tokens reach the output, and whether the last of them is a stop token.

    Args:
        tokens: the accepted run and the target's own token after it.
        room: tokens the output may still take, at least 1.
        stop_ids: tokens that end the output; the stop token itself is emitted.
    """
    for count, token in enumerate(tokens[:room], start=1):
        if token in stop_ids:
            return count, True
    return min(len(tokens), room), False


@dataclass(frozen=True)
class Verdict:
    """The target's answer to one proposal."""

    accepted: int  # leading drafted tokens that stand
    token: int  # the target's own next token: correction after a mismatch, bonus after none


@dataclass(frozen=True)
class MatchVerifier:
    """Sample-and-match with one temperature and one stream of randomness."""

    temperature: float = 0.0
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UserError.of("temperature", self.temperature, "0 or a positive number")

    def __call__(self, proposal: Sequence[int], logits: Tensor) -> Verdict:
        """Judge ``k`` drafted tokens by the target's logits at the anchor and at each of them.

        Args:
            proposal: drafted token ids. ``[k]``
            logits: row j is the target's prediction of the token after the j-th verified one.
                ``[k+1, V]``
        """
        drawn = draw_tokens(logits, self.temperature, self.generator).tolist()  # [k+1]
        accepted = leading_matches(proposal, drawn[:-1])
        return Verdict(accepted, drawn[accepted])


VERIFIERS: dict[str, Callable[[float, torch.Generator | None], MatchVerifier]] = {
    "match": MatchVerifier
}
