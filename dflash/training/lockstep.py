"""Several trainings in one process that take turns, optimizer step by optimizer step.

Each is an ordinary training in a thread of its own. Exactly one runs at any time and it hands over
where it asks for its next batch, so nothing is computed side by side and no state is raced for. The
one that is furthest behind goes next: they meet at the same step, also after a kill that left them
at different ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

Pace = Callable[[int], None]  # called with the step whose batch is wanted; returns when it may be
NOT_STARTED = -1


def alone(step: int) -> None:
    """The pace of a run that waits for nobody."""


class Stopped(BaseException):
    """Ends a training whose siblings were interrupted; Lightning tidies up and lets it pass."""


def run_in_lockstep(runs: Sequence[Callable[[Pace], None]]) -> list[Exception | None]:
    """Run all to their ends.

    Args:
        runs: each is given the function it must call before every step.

    Returns:
        What each run raised, if anything; the others were not disturbed by it.
    """
    turns = _Turns(len(runs))
    errors: list[BaseException | None] = [None] * len(runs)

    def work(index: int) -> None:
        try:
            turns.wait(index, NOT_STARTED)
            runs[index](lambda step: turns.wait(index, step))
        except Exception as error:
            errors[index] = error
        except BaseException as error:  # an interruption concerns all of them
            errors[index] = error
            turns.stop()
        finally:
            turns.leave(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(runs))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # Ctrl-C reaches this thread only
        turns.stop()
        for thread in threads:
            thread.join()
    interruptions = [error for error in errors if not isinstance(error, Exception | None)]
    if interruptions:
        raise next((e for e in interruptions if not isinstance(e, Stopped)), interruptions[0])
    return [error for error in errors if isinstance(error, Exception | None)]


class _Turns:
    """Whose turn it is."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.steps = dict.fromkeys(range(count), NOT_STARTED)  # run -> the step it wants to do
        self.current: int | None = 0
        self.stopped = False
        self.changed = threading.Condition()

    def wait(self, index: int, step: int) -> None:
        """Offer the turn and come back with it."""
        with self.changed:
            self.steps[index] = step
            if self.current == index:
                self._pass_on()
            self.changed.wait_for(lambda: self.current == index or self.stopped)
            if self.stopped:
                raise Stopped

    def leave(self, index: int) -> None:
        """Give the turn up for good."""
        with self.changed:
            del self.steps[index]
            if self.current == index:
                self._pass_on()

    def stop(self) -> None:
        """Let everyone raise where it waits."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _pass_on(self) -> None:
        # of several at one step another goes first each time: the first one pays for the features
        def turn(index: int) -> tuple[int, int]:
            return self.steps[index], (index - self.steps[index]) % self.count

        self.current = min(self.steps, key=turn, default=None)
        self.changed.notify_all()
