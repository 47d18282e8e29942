"""One worker process per cell on this machine, several at a time, each with its share of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from pathlib import Path

from dflash.lab.executors.job import Job, Result, lost
from dflash.lab.executors.pending import Pending
from dflash.lab.executors.slots import Slot, cores_here, divide
from dflash.lab.executors.worker import JOB, RESULT
from dflash.lab.stages.common import Lab, read_json, write_json

WORKER = (sys.executable, "-m", "dflash.lab.executors.worker")


class Processes:
    """The executor of a machine with several devices, or of cores that are to be divided.

    Args:
        devices: names of the GPUs; empty on a CPU.
        workers: see ``divide``.
        retries: how often the job of a lost worker is started again.
    """

    def __init__(self, lab: Lab, devices: Sequence[str], workers: int | None, retries: int) -> None:
        self.lab, self.devices, self.workers, self.retries = lab, devices, workers, retries
        self._running: set[subprocess.Popen[str]] = set()
        self._stopping = threading.Event()

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result]]:
        """Results as they come. Leaving the generator ends the workers."""
        self.lab.unload()  # the workers need the memory
        self._stopping.clear()
        pending = Pending(self.lab, jobs)
        done: queue.Queue[tuple[Job, Result] | Exception] = queue.Queue()
        for slot in self.slots(jobs):
            threading.Thread(target=self._serve, args=(slot, pending, done), daemon=True).start()
        try:
            for _ in jobs:
                item = done.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._stop()

    def slots(self, jobs: Sequence[Job]) -> list[Slot]:
        """What the workers of these jobs get; a shared input has the machine to itself."""
        if any(job.shared for job in jobs):
            return [Slot(cores_here(), tuple(self.devices))]
        per_job = max((job.devices for job in jobs), default=1)
        return divide(cores_here(), self.devices, self.workers, per_job)

    def _serve(
        self, slot: Slot, pending: Pending, done: queue.Queue[tuple[Job, Result] | Exception]
    ) -> None:
        """A thread: one job after the other on one slot."""
        try:
            while not self._stopping.is_set() and (taken := pending.take()) is not None:
                job, claim = taken
                with claim:
                    done.put((job, self._result(slot, job)))
        except Exception as error:  # to the thread that waits for results
            done.put(error)

    def _result(self, slot: Slot, job: Job) -> Result:
        how = ""
        for attempt in range(self.retries + 1):
            if attempt:
                self.lab.say(f"{job.label}: worker lost ({how}); starting it again")
            result, how = self._attempt(slot, job)
            if result is not None or self._stopping.is_set():
                break
        return result or lost(how, self.retries + 1)

    def _attempt(self, slot: Slot, job: Job) -> tuple[Result | None, str]:
        """The result that one worker leaves, or how the worker ended."""
        with tempfile.TemporaryDirectory(prefix="dflash-") as name:
            folder = Path(name)
            store = str(self.lab.store.root.absolute())
            write_json(folder / JOB, {"store": store, "job": dataclasses.asdict(job)})
            process = subprocess.Popen(
                [*WORKER, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=os.environ | slot.environment(),
                start_new_session=True,  # Ctrl-C is for this process, which ends its workers
            )
            self._running.add(process)
            if self._stopping.is_set():
                self._stop()
            assert process.stdout is not None
            for line in process.stdout:
                self.lab.say(f"[{job.label}] {line.rstrip()}")
            code = process.wait()
            self._running.discard(process)
            if (folder / RESULT).is_file():
                return Result(**read_json(folder / RESULT)), ""
            return None, f"exit status {code}"

    def _stop(self) -> None:
        """End the workers: they live as long as their input is open."""
        self._stopping.set()
        for process in list(self._running):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
