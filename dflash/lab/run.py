"""Run an experiment: plan, cells, tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash.lab.budget import match_budget
from dflash.lab.cells import outcomes_by_seed, prepare
from dflash.lab.executors.choice import check_match, choose_executor
from dflash.lab.experiment import Experiment
from dflash.lab.grid import Outcome, plan_arm, plan_arms, plan_text, result_tables
from dflash.lab.lineage import begin_results, write_diffs, write_lineage
from dflash.lab.matched import prove_matched
from dflash.lab.pipeline import run_shared
from dflash.lab.plan.quota import NO_LIMIT, Quota, hold_to_quota
from dflash.lab.results import write_results
from dflash.lab.stages.common import Lab, write_json
from dflash.lab.store import no_space_is_user_error
from dflash.lab.together import check_together, train_together


@dataclass(frozen=True)
class Finished:
    """Where the tables are, how many cells were measured, which failed (arm, seed, error)."""

    directory: Path
    measured: int
    failed: list[tuple[str, int, str]]


def run_experiment(
    lab: Lab,
    experiment: Experiment,
    results: Path,
    together: bool = False,
    quota: Quota = NO_LIMIT,
) -> Finished:
    """Bring every cell into the store and write ``results/<experiment>/``.

    Finished work is taken from the store, interrupted work goes on, a cell that fails becomes a row
    with its error while the others run. The tables are rewritten whenever a seed is through, so an
    interruption leaves a paired result.

    Args:
        together: the arms of a seed train in this process from one pass over the target's
            features; the results are the same.
        quota: what the missing work may cost.

    Raises:
        UserError: a configuration that cannot run, before anything has run; or the store is
            damaged or full, with nothing lost.
    """
    hold_to_quota(lab, experiment, quota)
    executor = choose_executor(lab, experiment.config)
    check_match(experiment)
    if together:
        check_together(experiment, executor)
    if experiment.match:
        possible = [plan_arm(lab, arm) for arm in experiment.arms]
        prepare(lab, executor, possible[0])  # budgets are counted on the answers
        experiment = match_budget(lab, experiment)
        hold_to_quota(lab, experiment, quota)
    planned = plan_arms(lab, experiment)
    lab.say(plan_text(lab, experiment, planned))
    control = planned[0]
    prepare(lab, executor, control)
    floors, card = run_shared(lab, control.arm.config, control.info)
    directory = results / experiment.name
    with no_space_is_user_error(results):
        entries = begin_results(directory, experiment, planned, config_text(experiment))
        write_json(directory / "data_card.json", card)
    for seed in experiment.seeds if together else ():
        train_together(lab, planned, seed)
    through: list[Outcome] = []
    for outcomes in outcomes_by_seed(lab, executor, planned, experiment.seeds):
        through += outcomes
        proof = prove_matched(through, experiment.invariants)
        with no_space_is_user_error(results):
            write_json(directory / "matched.json", proof.report())
            write_results(directory, result_tables(experiment, proof.outcomes, floors))
            write_lineage(directory, lab.store, entries, through)
            write_diffs(directory, [o.cell.trained for o in through if o.cell is not None])
    failed = [(o.planned.arm.name, o.seed, o.error) for o in proof.outcomes if o.cell is None]
    return Finished(directory, len(through) - len(failed), failed)


def config_text(experiment: Experiment) -> str:
    """The resolved configuration of an experiment as YAML."""
    tree: dict[str, Any] = {
        "experiment": experiment.name,
        "question": experiment.question,
        "hypothesis": experiment.hypothesis,
        "paper": experiment.paper,
        "recipe": experiment.config.recipe,
        "tier": experiment.config.tier,
        "setting": experiment.config.setting,
        "seeds": list(experiment.seeds),
        "control": experiment.config.tree(),
        "arms": {
            arm.name: {name: after for name, (_, after) in arm.diff.items()}
            for arm in experiment.arms[1:]
        },
        "match": experiment.match,
        "matched": {arm.name: arm.matched for arm in experiment.arms[1:] if arm.matched},
        "invariants": [str(invariant) for invariant in experiment.invariants],
    }
    return yaml.safe_dump(tree, sort_keys=False, width=100, allow_unicode=True)
