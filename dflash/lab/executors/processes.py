"""Worker processes on this machine, several cells at a time, each worker with its share of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from dflash.lab.executors.job import Job, Result, lost
from dflash.lab.executors.pending import Pending
from dflash.lab.executors.slots import Slot, cores_here, divide
from dflash.lab.stages.common import Lab

WORKER = (sys.executable, "-m", "dflash.lab.executors.worker")
Done = queue.SimpleQueue[tuple[Job, Result] | Exception]


class Worker:
    """A process of ``worker.py``; it lives as long as its stdin is open."""

    def __init__(self, store: Path, slot: Slot, say: Callable[[str], None]) -> None:
        self._say, self._label = say, ""
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [*WORKER, str(store.absolute()), str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=[writing],
            env=os.environ | slot.environment(),
            start_new_session=True,  # Ctrl-C is for this process, which ends its workers
        )
        os.close(writing)
        self._results = os.fdopen(reading)
        self._talk = threading.Thread(target=self._pass_on, daemon=True)
        self._talk.start()

    def do(self, job: Job) -> Result | None:
        """Have a job done; None when the process dies over it."""
        assert self._process.stdin is not None
        self._label = job.label
        with contextlib.suppress(BrokenPipeError):  # then there is no result either
            self._process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
            self._process.stdin.flush()
        line = self._results.readline()
        return Result(**json.loads(line)) if line.endswith("\n") else None

    def end(self) -> str:
        """End the process, or find it dead; in words, how it ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        self._talk.join()
        return f"exit status {code}"

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._say(f"[{self._label}] {line.rstrip()}")


class Processes:
    """The executor of a machine with several devices, or of cores that are to be divided.

    Args:
        devices: names of the GPUs; empty on a CPU.
        workers: see ``divide``.
        retries: how often the job of a lost worker is started again.
    """

    def __init__(self, lab: Lab, devices: Sequence[str], workers: int | None, retries: int) -> None:
        self.lab, self.devices, self.workers, self.retries = lab, devices, workers, retries
        self._running: set[Worker] = set()
        self._stopping = threading.Event()

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[Job, Result]]:
        """Results as they come. Leaving the generator ends the workers."""
        self.lab.unload()  # the workers need the memory
        self._stopping.clear()
        pending, done = Pending(self.lab, jobs), Done()
        threads = [
            threading.Thread(target=self._serve, args=(slot, pending, done), daemon=True)
            for slot in self.slots(jobs)[: len(jobs)]
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in jobs:
                item = done.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._stopping.set()
            for worker in list(self._running):
                worker.end()

    def slots(self, jobs: Sequence[Job]) -> list[Slot]:
        """What the workers of these jobs get; a shared input has the machine to itself."""
        if any(job.shared for job in jobs):
            return [Slot(cores_here(), tuple(self.devices))]
        per_job = max((job.devices for job in jobs), default=1)
        return divide(cores_here(), self.devices, self.workers, per_job)

    def _serve(self, slot: Slot, pending: Pending, done: Done) -> None:
        """A thread: one job after the other on one slot."""
        worker = None
        try:
            while not self._stopping.is_set() and (taken := pending.take()) is not None:
                job, claim = taken
                with claim:
                    result, worker = self._result(slot, worker, job)
                done.put((job, result))
        except Exception as error:  # to the thread that waits for results
            done.put(error)
        finally:
            if worker is not None:
                self._end(worker)

    def _result(self, slot: Slot, worker: Worker | None, job: Job) -> tuple[Result, Worker | None]:
        """The result, and the worker if it lives; a lost one is replaced ``retries`` times."""
        how = ""
        for attempt in range(self.retries + 1):
            if attempt:
                self.lab.say(f"{job.label}: worker lost ({how}); starting it again")
            worker = worker or self._start(slot)
            result = worker.do(job)
            if result is not None:
                return result, worker
            how, worker = self._end(worker), None
            if self._stopping.is_set():
                break
        return lost(how, self.retries + 1), None

    def _start(self, slot: Slot) -> Worker:
        worker = Worker(self.lab.store.root, slot, self.lab.say)
        self._running.add(worker)
        if self._stopping.is_set():
            worker.end()
        return worker

    def _end(self, worker: Worker) -> str:
        self._running.discard(worker)
        return worker.end()
