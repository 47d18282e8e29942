"""Jobs that have not begun, shared out among threads and among processes on one experiment."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import IO

from dflash.lab.executors.job import Job
from dflash.lab.stages.common import Lab


class Pending:
    """Gives out each job once: first those that nobody works on, at the end the others."""

    def __init__(self, lab: Lab, jobs: Sequence[Job]) -> None:
        self._lab = lab
        self._jobs = list(jobs)
        self._lock = threading.Lock()

    def take(self, wait: bool = True) -> tuple[Job, IO[str]] | None:
        """A job with its claim, to be closed when the job has ended; None when none is left.

        A job that another process has claimed is waited for: it is finished then, or free.

        Args:
            wait: otherwise None, too, while other processes have claimed all that is left.
        """
        store = self._lab.store
        with self._lock:
            for job in self._jobs:
                claim = store.claim(job.claim)
                if claim is not None:
                    self._jobs.remove(job)
                    return job, claim
            if not (self._jobs and wait):
                return None
            job = self._jobs.pop(0)
        self._lab.say(f"{job.label}: waiting for another process that works on it")
        claim = store.claim(job.claim, wait=True)
        assert claim is not None
        return job, claim
