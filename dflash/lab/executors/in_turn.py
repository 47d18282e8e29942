"""Jobs in turn in this process: nothing is started, and the target stays loaded between them."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from dflash.lab.executors.job import Job, Result, perform
from dflash.lab.executors.pending import Pending
from dflash.lab.stages.common import Lab


class InTurn:
    """The executor of a single device."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result]]:
        """One after the other; what another process works on comes last."""
        pending = Pending(self.lab, jobs)
        while (taken := pending.take()) is not None:
            job, claim = taken
            with claim:
                result = perform(self.lab, job)
            yield job, result
