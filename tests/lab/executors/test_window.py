"""Jobs that wait in a cluster's queue, on a cluster that does what a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from dflash.lab.executors.job import Job, Result
from dflash.lab.executors.window import run_in_window


def job(label: str) -> Job:
    return Job(label, {"train": {"devices": 1}}, 0, f"claim-{label}")


class Instant:
    """Jobs end in the order in which they came; the first attempts of some are lost."""

    def __init__(self, lost: int = 0) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.most = 0
        self.lost = lost

    def submit(self, job: Job) -> str:
        self.submitted.append(job.label)
        return f"{job.label} {len(self.submitted)}"

    def wait(self, handles: Sequence[str]) -> str:
        self.most = max(self.most, len(handles))
        return handles[0]

    def result(self, handle: str) -> Result | str:
        self.lost -= 1
        return "node failed" if self.lost >= 0 else Result({"train": handle})

    def cancel(self, handle: str) -> None:
        self.cancelled.append(handle)


def test_what_another_command_has_submitted_is_not_submitted_again(lab):
    ours, theirs = Instant(), Instant()
    jobs = [job(label) for label in "abcd"]
    first = run_in_window(lab, ours, jobs, 2, retries=0)
    done = [next(first)[0].label]  # a has ended, b is in the queue
    second = run_in_window(lab, theirs, jobs[1:], None, retries=0)
    assert [next(second)[0].label for _ in range(2)] == ["c", "d"]
    assert theirs.submitted == ["c", "d"]
    done += [item.label for item, _ in first]
    assert done == list("abcd")
    assert [item.label for item, _ in second] == ["b"], "it comes back when that has ended"


def test_it_waits_for_what_is_left_to_others_only(lab):
    claim = lab.store.claim("claim-a")
    run = run_in_window(lab, Instant(), [job("a"), job("b")], None, retries=0)
    assert next(run)[0].label == "b"
    results: list[str] = []
    waiter = threading.Thread(target=lambda: results.extend(item.label for item, _ in run))
    waiter.start()
    while "a: waiting for another process that works on it" not in lab.said:
        time.sleep(0.01)
    assert results == []
    claim.close()
    waiter.join(timeout=10)
    assert results == ["a"]


def test_a_lost_job_keeps_its_claim_until_it_is_given_up(lab):
    cluster = Instant(lost=3)
    run = run_in_window(lab, cluster, [job("a"), job("b")], 1, retries=1)
    results = {item.label: result for item, result in run}
    assert results["a"] == Result(None, "worker lost 2 times, at last: node failed")
    assert results["b"].entries is not None
    assert cluster.submitted == ["a", "a", "b", "b"]
    assert cluster.most == 1


def test_leaving_cancels_and_gives_claims_back(lab):
    cluster = Instant()
    run = run_in_window(lab, cluster, [job(label) for label in "abc"], 2, retries=0)
    next(run)
    run.close()
    assert cluster.cancelled == ["b 2"]
    assert all(lab.store.claim(f"claim-{label}") for label in "abc")
