"""The cells of an experiment: what of them is missing becomes jobs, results become outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from dflash.lab.executors.choice import Executor
from dflash.lab.executors.job import Job, Result
from dflash.lab.grid import Outcome, PlannedArm
from dflash.lab.pipeline import cell_keys, is_prepared, read_cell, stored_cell
from dflash.lab.stages.common import Lab
from dflash.lab.store import StoreError


def prepare(lab: Lab, executor: Executor, control: PlannedArm) -> None:
    """Let the executor build what the cells share, where something of it is missing.

    Raises:
        UserError: data that fail the gates, or a store that is damaged or full.
    """
    config = control.arm.config
    if is_prepared(lab.store, config, control.info):
        return
    job = Job("answers and features that the cells share", config.tree(), None, "shared")
    with contextlib.closing(executor.run([job])) as results:
        for _, result in results:
            if result.entries is None:
                raise StoreError(result.error) if result.fatal else RuntimeError(result.error)


def outcomes_by_seed(
    lab: Lab, executor: Executor, planned: Sequence[PlannedArm], seeds: Sequence[int]
) -> Iterator[list[Outcome]]:
    """The outcomes of a seed, in the order of the arms, as soon as all of them are known.

    Raises:
        StoreError: a store that is damaged or full.
    """
    known = {seed: [_stored(lab, item, seed) for item in planned] for seed in seeds}
    jobs: list[Job] = []
    places: dict[str, tuple[int, int]] = {}  # label -> seed, index of the arm
    for seed in seeds:  # seeds outside: the first that is through is a complete comparison
        for index, item in enumerate(planned):
            if known[seed][index] is None:
                jobs.append(_job(item, seed))
                places[jobs[-1].label] = (seed, index)
    total = len(seeds) * len(planned)
    yield from (whole for seed in seeds if (whole := _whole(known[seed])))
    with contextlib.closing(executor.run(jobs)) as results:
        for count, (job, result) in enumerate(results, total - len(jobs) + 1):
            seed, index = places[job.label]
            known[seed][index] = _outcome(lab, planned[index], seed, result)
            lab.say(f"{job.label}: {result.error or 'done'} ({count} of {total} cells)")
            if whole := _whole(known[seed]):
                yield whole


def _whole(outcomes: Sequence[Outcome | None]) -> list[Outcome]:
    """The outcomes of a seed, or nothing while one is missing."""
    there = [outcome for outcome in outcomes if outcome is not None]
    return there if len(there) == len(outcomes) else []


def _stored(lab: Lab, item: PlannedArm, seed: int) -> Outcome | None:
    names = stored_cell(lab.store, item.arm.config, item.info, seed)
    return None if names is None else Outcome(item, seed, read_cell(lab.store, names))


def _job(item: PlannedArm, seed: int) -> Job:
    config, label = item.arm.config, f"{item.arm.name}, seed {seed}"
    keys = cell_keys(config, item.info, seed)
    claim = next(key.name for key in keys if key.stage == "train")
    return Job(label, config.tree(), seed, claim)


def _outcome(lab: Lab, item: PlannedArm, seed: int, result: Result) -> Outcome:
    if result.fatal:
        raise StoreError(result.error)
    cell = None if result.entries is None else read_cell(lab.store, result.entries)
    return Outcome(item, seed, cell, result.error)
