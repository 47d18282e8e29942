"""One rank of a training run: torchrun starts it with the file that ``ranks.py`` wrote."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path

from dflash.lab.config import LabConfig, config_from_tree
from dflash.lab.errors import one_line
from dflash.lab.files import write_text
from dflash.lab.stages.answers import Answers
from dflash.lab.stages.common import Lab, read_json
from dflash.lab.stages.features import Features
from dflash.lab.stages.ranks import ERROR
from dflash.lab.stages.train import Training
from dflash.lab.store import Store
from dflash.target.load import device_of
from dflash.training.ranks import is_first_rank, local_rank


def main(path: Path) -> None:
    """Do this rank's share of the work."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    work = read_json(path)
    directory = Path(work["directory"])
    try:
        config = on_own_device(config_from_tree(work["config"], recipe="", tier=""))
        store = Store(Path(work["store"]))
        lab = Lab(store, print, progress=work["progress"] and is_first_rank())
        answers = Answers(store.root / work["answers"], config.data.temperature)
        name = work["features"]
        features = None if name is None else Features(store.root / name)
        seed, identity = work["seed"], work["identity"]
        Training(lab, config, seed, identity, answers, features).train_here(directory)
    except Exception as error:
        write_text(directory / ERROR, one_line(error))
        raise


def on_own_device(config: LabConfig) -> LabConfig:
    """The configuration with the target on this rank's device."""
    if device_of(config.target.device).type != "cuda":
        return config
    target = dataclasses.replace(config.target, device=f"cuda:{local_rank()}")
    return dataclasses.replace(config, target=target)


def end_with_parent() -> None:
    """End this process when the one that started the ranks is gone, and stdin's other end."""
    while os.read(0, 1):  # not by sys.stdin, whose lock the interpreter needs to exit
        pass
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
