"""Detection of looping answers: a loop is trivially accepted and inflates acceptance lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["degenerate", "loop_start", "repeated_ngram_share"]

Tokens = Sequence[int] | npt.NDArray[np.integer]


def repeated_ngram_share(tokens: Tokens, n: int = 8) -> float:
    """Share of the n-grams of ``tokens`` that occurred before in it; 0.0 when there are none."""
    ids = np.asarray(tokens)
    if ids.size < n:
        return 0.0
    grams = np.lib.stride_tricks.sliding_window_view(ids, n)
    return 1 - len(np.unique(grams, axis=0)) / len(grams)


def loop_start(
    tokens: Tokens, max_period: int = 64, repeats: int = 4, shortest: int = 16
) -> int | None:
    """Index at which ``tokens`` falls into a run that repeats to its end, or None.

    A run of period d counts when it fills at least ``repeats`` periods and ``shortest`` tokens. The
    smallest such period decides. One trailing token that breaks the run (a stop token, say) is not
    forgiven: cut it off first if it should be.
    """
    ids = np.asarray(tokens)
    for period in range(1, min(max_period, ids.size // repeats) + 1):
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        start = int(differs[-1]) + 1 if differs.size else 0
        if ids.size - start >= max(repeats * period, shortest):
            return start
    return None


def degenerate(tokens: Tokens) -> bool:
    """Does an answer loop: it ends in a repeated run, or over half of its 8-grams repeat."""
    return loop_start(tokens) is not None or repeated_ngram_share(tokens) > 0.5
