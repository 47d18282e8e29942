"""The leading run of right slots when some slots of a block have no label."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["HoleRule", "prefix_length"]

HoleRule = Literal["pass", "stop", "drop"]


def prefix_length(
    correct: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_], rule: HoleRule
) -> int | None:
    """Length of the leading run of right slots of a block by a named rule (conventions §2, V3).

    Args:
        correct: is slot k right; ignored where not ``valid``. ``[B-1]``
        valid: has slot k a label. ``[B-1]``
        rule: what an unlabelled slot with a labelled one behind it does. ``pass``: it is skipped
            and not counted (SpecForge); ``stop``: it ends the run (DeepSpec); ``drop``: the block
            is excluded. Unlabelled slots at the end of a block are no hole: they end the run.

    Returns:
        The number of right slots in the run, or None for an excluded block.
    """
    correct, valid = np.asarray(correct, dtype=bool), np.asarray(valid, dtype=bool)
    last = int(np.flatnonzero(valid)[-1]) + 1 if valid.any() else 0
    correct, valid = correct[:last], valid[:last]
    if rule == "drop" and not valid.all():
        return None
    passes = (correct | ~valid) if rule == "pass" else (correct & valid)
    run = np.logical_and.accumulate(passes)
    return int((run & valid).sum())
