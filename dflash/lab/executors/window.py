"""Keep a cluster busy: submit, wait for whatever ends first, submit again what was lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from dflash.lab.executors.job import Job, Result, lost
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

    Args:
        limit: jobs that may be submitted at a time; None for all.
        retries: how often a lost job is submitted again.
    """
    todo, attempts = deque(jobs), Counter[str]()
    running: dict[Handle, Job] = {}
    try:
        while todo or running:
            while todo and (limit is None or len(running) < limit):
                job = todo.popleft()
                running[cluster.submit(job)] = job
                attempts[job.label] += 1
            handle = cluster.wait(list(running))
            job = running.pop(handle)
            result = cluster.result(handle)
            if isinstance(result, Result):
                yield job, result
            elif attempts[job.label] > retries:
                yield job, lost(result, attempts[job.label])
            else:
                lab.say(f"{job.label}: worker lost ({result}); starting it again")
                todo.appendleft(job)
    finally:
        for handle in running:
            cluster.cancel(handle)
