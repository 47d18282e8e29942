"""Write the answers that the repository carries: ``python -m dflash.lab.ship [key=value …]``.

The rollout stage answers all prompts of the composed configuration anew, with one budget for
training and evaluation; its raw answers become ``dflash/data/shipped/<target>.parquet``.
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

SPLITS: tuple[Split, ...] = ("train", "eval")
LARGEST = 4 * 2**20  # bytes that a repository should carry at most


def ship(overrides: list[str], store: Path, budget: int) -> Path:
    """Answer everything, collect, and return the file.

    Raises:
        UserError: see the stages; or the file would be larger than the repository should carry.
    """
    lengths = [f"data.train_new_tokens={budget}", f"data.eval_new_tokens={budget}"]
    config = compose_config([*overrides, *lengths, "data.rollouts=fresh", "data.temperature=0"])
    lab = Lab(Store(store), tqdm.write)
    info = target_info(lab, config.target)
    entries = [build_answers(lab, config, split, info.identity).entry for split in SPLITS]
    path = Path(dflash.data.__path__[0]) / FOLDER / f"{config.target.name}.parquet"
    path.parent.mkdir(exist_ok=True)
    size = collect(lab.target(config.target), _raw(entries), budget, path)
    if size > LARGEST:
        raise UserError.of(str(path), f"{size} bytes", f"at most {LARGEST}: take fewer prompts")
    return path


def _raw(entries: list[Path]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(prompt ids, answer ids) as generated, before loops are cut."""
    for entry in entries:
        for shard in sorted(entry.glob("turn*-shard*.parquet")):
            for row in read_rollouts(shard):
                yield row.prompt_ids, row.answer_ids


if __name__ == "__main__":
    print(ship(sys.argv[1:], Path("store"), budget=192))
