"""Keep a cluster busy: submit, wait for whatever ends first, submit again what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import IO, Protocol, TypeVar

from dflash.lab.executors.job import Job, Result, lost
from dflash.lab.executors.pending import Pending
from dflash.lab.stages.common import Lab

Handle = TypeVar("Handle")


class Cluster(Protocol[Handle]):
    """What the window needs of a cluster."""

    def submit(self, job: Job) -> Handle:
        """Start a job, or put it in a queue."""

    def wait(self, handles: Sequence[Handle]) -> Handle:
        """One that has ended, when there is one."""

    def result(self, handle: Handle) -> Result | str:
        """What a job that has ended left; if nothing, how it was lost, in words."""

    def cancel(self, handle: Handle) -> None:
        """End a job."""


def run_in_window(
    lab: Lab, cluster: Cluster[Handle], jobs: Sequence[Job], limit: int | None, retries: int
) -> Generator[tuple[Job, Result]]:
    """Results as they come; leaving the generator cancels what still runs.

    This process holds the claims of what it has submitted: a second command on the same cells
    submits others, and comes back to these when they have ended.

    Args:
        limit: jobs that may be submitted at a time; None for all.
        retries: how often a lost job is submitted again.
    """
    pending, attempts = Pending(lab, jobs), Counter[str]()
    running: dict[Handle, tuple[Job, IO[str]]] = {}

    def start(job: Job, claim: IO[str]) -> None:
        attempts[job.label] += 1
        running[cluster.submit(job)] = job, claim

    try:
        while True:
            while limit is None or len(running) < limit:
                taken = pending.take(wait=not running)
                if taken is None:
                    break
                start(*taken)
            if not running:
                return
            handle = cluster.wait(list(running))
            job, claim = running.pop(handle)
            result = cluster.result(handle)
            if isinstance(result, str) and attempts[job.label] <= retries:
                lab.say(f"{job.label}: worker lost ({result}); starting it again")
                start(job, claim)
                continue
            claim.close()
            yield job, lost(result, attempts[job.label]) if isinstance(result, str) else result
    finally:
        for handle, (_, claim) in running.items():
            cluster.cancel(handle)
            claim.close()
