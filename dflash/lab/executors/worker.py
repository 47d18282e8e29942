"""A worker process: ``python -m dflash.lab.executors.worker STORE DESCRIPTOR``.

It reads jobs from stdin and writes results to an open descriptor, a line of JSON each, and keeps
the target loaded in between. What it prints is for people.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path

from transformers.utils import logging

from dflash.lab.executors.job import Job, perform
from dflash.lab.stages.common import Lab
from dflash.lab.store import Store


def main(store: Path, descriptor: int) -> None:
    """Do jobs until stdin ends."""
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_jobs, args=(jobs,), daemon=True).start()
    lab = quiet_lab(store)
    with os.fdopen(descriptor, "w") as results:
        while True:
            job = Job(**json.loads(jobs.get()))
            print(json.dumps(perform(lab, job).plain()), file=results, flush=True)


def read_jobs(jobs: queue.SimpleQueue[str]) -> None:
    """Pass jobs on; when the process at the other end is gone, end this one, whatever it does."""
    with open(0, closefd=False) as lines:  # not sys.stdin, whose lock the interpreter needs to exit
        for line in lines:
            jobs.put(line)
    os._exit(0)


def quiet_lab(store: Path) -> Lab:
    """The lab of a process that nobody looks at: lines of text, no progress bars."""
    logging.disable_progress_bar()
    return Lab(Store(store), say, progress=False)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
