"""Add answers to what the repository carries: ``python -m dflash.lab.ship [key=value …]``.

The rollout stage answers the prompts of the composed configuration; whatever it had to make anew
goes, as generated, into ``dflash/data/shipped/<target>.parquet``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dflash.data
from dflash.data.rollouts import read_rollouts
from dflash.data.shipped import FOLDER, collect
from dflash.lab.config import compose_config
from dflash.lab.stages.answers import Split, build_answers
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info
from dflash.lab.store import Store
from dflash.model.errors import UserError

LARGEST = 4 * 2**20  # bytes that a repository should carry at most


def ship(overrides: list[str], store: Path, path: Path | None = None) -> Path:
    """Answer what is missing, add it, and return the file.

    Args:
        path: the file to add to; by default the package's own for the target.

    Raises:
        UserError: answers that are not greedy, a file that has grown too large; see the stages.
    """
    config = compose_config(overrides)
    if config.data.temperature != 0:
        raise UserError.of("data.temperature", config.data.temperature, "0: shipped means greedy")
    lab = Lab(Store(store), tqdm.write)
    info = target_info(lab, config.target)
    path = path or Path(dflash.data.__path__[0]) / FOLDER / f"{config.target.name}.parquet"
    budgets: dict[Split, int] = {
        "train": config.data.train_new_tokens,
        "eval": config.data.eval_new_tokens,
    }
    for split, budget in budgets.items():
        entry = build_answers(lab, config, split, info.identity).entry
        size = collect(lab.target(config.target), _made(entry), budget, path)
        if size > LARGEST:
            raise UserError.of(str(path), f"{size} bytes", f"at most {LARGEST}: take fewer prompts")
    return path


def _made(entry: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(prompt ids, answer ids) that the stage generated, before loops were cut."""
    for shard in sorted(entry.glob("turn*-shard*.parquet")):
        for row in read_rollouts(shard):
            yield row.prompt_ids, row.answer_ids


if __name__ == "__main__":
    print(ship(sys.argv[1:], Path("store")))
