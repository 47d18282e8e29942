"""Where training blocks start: positions of the answer whose next token is known.

An anchor is an answer token that is followed by another (conventions §1, row "Anchor eligible if");
labels beyond the answer's end are simply not supervised. The choice depends only on the seed, the
step and the row, so arms of every shape see the same anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
# (eligible positions, block size, how many, generator) -> sorted anchors
AnchorRule = Callable[[Positions, int, int, np.random.Generator], Positions]


def eligible(prompt_length: int, answer_length: int) -> Positions:
    """Positions of answer tokens that have a successor in the answer."""
    return np.arange(prompt_length, prompt_length + answer_length - 1)


def random_anchors(
    positions: Positions, block_size: int, count: int, generator: np.random.Generator
) -> Positions:
    """``count`` eligible positions drawn without replacement (paper section 4.3)."""
    if len(positions) <= count:
        return positions
    return np.sort(generator.choice(positions, size=count, replace=False))


def uniform_anchors(
    positions: Positions, block_size: int, count: int, generator: np.random.Generator
) -> Positions:
    """The answer cut into consecutive blocks (paper Table 13, "standard"); at most ``count``."""
    return random_anchors(positions[::block_size], block_size, count, generator)


def all_anchors(
    positions: Positions, block_size: int, count: int, generator: np.random.Generator
) -> Positions:
    """Every eligible position, whatever ``count`` says."""
    return positions


ANCHOR_RULES: dict[str, AnchorRule] = {
    "random": random_anchors,
    "uniform": uniform_anchors,
    "all": all_anchors,
}


def generator_for(stream: str, *key: int) -> np.random.Generator:
    """A generator that depends on the stream's name and ``key`` alone, e.g. (seed, step, row)."""
    entropy = (int.from_bytes(stream.encode(), "little"), *key)
    return np.random.default_rng(np.random.SeedSequence(entropy))


def labels_of(
    token_ids: Sequence[int] | Positions, anchors: Positions, block_size: int
) -> Positions:
    """``[N, block_size]``: slot k is token anchor+k; slot 0 and slots past the end are -100."""
    tokens = np.asarray(token_ids, dtype=np.int64)
    index = anchors[:, None] + np.arange(block_size)  # [N, slots]
    labels = tokens[np.minimum(index, len(tokens) - 1)]
    return np.where((index >= len(tokens)) | (np.arange(block_size) == 0), -100, labels)
