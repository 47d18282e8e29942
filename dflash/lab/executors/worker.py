"""A worker process: ``python -m dflash.lab.executors.worker FOLDER`` does the job in FOLDER."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from transformers.utils import logging

from dflash.lab.executors.job import Job, perform
from dflash.lab.stages.common import Lab, read_json, write_json
from dflash.lab.store import Store

JOB, RESULT = "job.json", "result.json"


def main(folder: Path) -> None:
    """Read the job, do it and leave its result."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.disable_progress_bar()
    given = read_json(folder / JOB)
    lab = Lab(Store(Path(given["store"])), say, progress=False)
    write_json(folder / RESULT, perform(lab, Job(**given["job"])).plain())


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def end_with_parent() -> None:
    """End this process when the one that started it is gone and the other end of stdin with it."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
