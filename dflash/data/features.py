"""The target's tapped hidden states: stored once and memory-mapped, or computed when asked for.

Both sources run the target on one sequence at a time, so they give identical values: padding or
another batch would change the last bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dflash.data.rollouts import Rollout
from dflash.model.errors import UserError
from dflash.target import Target
from dflash.target.files import replacing

FLUSH_EVERY = 32  # sequences recomputed at most after a kill


class FeatureSource(Protocol):
    """Features of the i-th rollout, prompt and answer."""

    def row(self, index: int) -> Tensor:
        """``[T_i, F*H]`` outputs of the tapped layers at every position."""
        ...


class OnlineFeatures:
    """Runs the target at every request; for data sets whose features do not fit the disk."""

    def __init__(
        self, target: Target, rollouts: Sequence[Rollout], taps: Sequence[int], dtype: str
    ) -> None:
        self.target, self.rollouts, self.taps = target, rollouts, tuple(taps)
        self.dtype = getattr(torch, dtype)

    def row(self, index: int) -> Tensor:
        """``[T_i, F*H]`` on the CPU."""
        ids = torch.as_tensor(self.rollouts[index].token_ids, dtype=torch.long)[None]
        return self.target.features(ids, self.taps)[0].to("cpu", self.dtype)


class FeatureStore:
    """Features on disk, one flat file, mapped into memory."""

    def __init__(self, directory: Path) -> None:
        meta = json.loads((directory / "features.json").read_text())
        self.offsets = np.concatenate([[0], np.cumsum(meta["lengths"])])
        self.width = meta["width"]
        self.dtype = getattr(torch, meta["dtype"])
        path = directory / "features.bin"
        size = int(self.offsets[-1]) * self.width
        actual = path.stat().st_size
        if actual != size * self.dtype.itemsize:
            expected = f"{size * self.dtype.itemsize} bytes (delete {directory} to rebuild it)"
            raise UserError.of(str(path), f"{actual} bytes", expected)
        self._flat = torch.from_file(str(path), size=size, dtype=self.dtype).view(-1, self.width)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Tensor:
        """``[T_i, F*H]``, a view of the mapped file: copy before writing."""
        return self._flat[int(self.offsets[index]) : int(self.offsets[index + 1])]


def build_features(
    target: Target,
    rollouts: Sequence[Rollout],
    taps: Sequence[int],
    dtype: str,
    directory: Path,
    progress: bool = True,
) -> FeatureStore:
    """Compute and store the features of every rollout; resumes in ``directory``.

    Args:
        dtype: ``float32`` or ``bfloat16``; what is stored, the target runs in its own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    online = OnlineFeatures(target, rollouts, taps, dtype)
    lengths = [len(row.token_ids) for row in rollouts]
    width = len(online.taps) * target.hidden_size
    partial, final = directory / "features.part", directory / "features.bin"
    if not final.exists():
        _write_rows(online, lengths, width * online.dtype.itemsize, partial, progress)
        os.replace(partial, final)
    meta = {"lengths": lengths, "width": width, "dtype": dtype, "taps": list(online.taps)}
    with replacing(directory / "features.json") as place:
        place.write_text(json.dumps(meta))
    return FeatureStore(directory)


def _write_rows(
    online: OnlineFeatures, lengths: list[int], row_bytes: int, path: Path, progress: bool
) -> None:
    """Append rows in order; what a kill left behind is kept up to the last whole sequence."""
    ends = np.cumsum(lengths) * row_bytes
    with open(path, "ab") as file:
        done = int(np.searchsorted(ends, file.tell(), side="right"))
        file.truncate(int(ends[done - 1]) if done else 0)
        bar = tqdm(total=sum(lengths), desc="features", unit="tok", disable=not progress)
        bar.update(sum(lengths[:done]))
        for index in range(done, len(lengths)):
            raw = online.row(index).contiguous().view(torch.uint8).numpy()
            file.write(raw.tobytes())
            if index % FLUSH_EVERY == 0:
                file.flush()
            bar.update(lengths[index])
        bar.close()
        file.flush()
        os.fsync(file.fileno())
