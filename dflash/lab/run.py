"""Run an experiment: plan, cells in turn, tables."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash.lab.experiment import Experiment
from dflash.lab.files import is_disk_full, write_text
from dflash.lab.grid import Outcome, PlannedArm, plan_arms, plan_text, result_tables
from dflash.lab.matched import prove_matched
from dflash.lab.pipeline import run_cell, run_shared
from dflash.lab.results import write_results
from dflash.lab.stages.common import Lab, write_json
from dflash.lab.store import StoreError, no_space_is_user_error
from dflash.lab.together import check_together, train_together


@dataclass(frozen=True)
class Finished:
    """Where the tables are, how many cells were measured, which failed (arm, seed, error)."""

    directory: Path
    measured: int
    failed: list[tuple[str, int, str]]


def run_experiment(
    lab: Lab, experiment: Experiment, results: Path, together: bool = False
) -> Finished:
    """Bring every cell into the store and write ``results/<experiment>/``.

    Finished work is taken from the store, interrupted work goes on, a cell that fails becomes a row
    with its error while the others run. The tables are rewritten whenever a seed is through, so an
    interruption leaves a paired result.

    Args:
        together: the arms of a seed train in this process from one pass over the target's
            features; the results are the same.

    Raises:
        UserError: a configuration that cannot run, before anything has run; or the store is
            damaged or full, with nothing lost.
    """
    if together:
        check_together(experiment)
    planned = plan_arms(lab, experiment)
    lab.say(plan_text(lab, experiment, planned))
    control = planned[0]
    floors, card = run_shared(lab, control.arm.config, control.info)
    directory = results / experiment.name
    with no_space_is_user_error(results):
        write_text(directory / "config.yaml", config_text(experiment))
        write_json(directory / "data_card.json", card)
    outcomes: list[Outcome] = []
    for seed in experiment.seeds:  # seeds outside: the first is a complete, paired comparison
        if together:
            train_together(lab, planned, seed)
        outcomes += [_run(lab, item, seed) for item in planned]
        proof = prove_matched(outcomes)
        with no_space_is_user_error(results):
            write_json(directory / "matched.json", proof.report())
            write_results(directory, result_tables(experiment, proof.outcomes, floors))
    failed = [(o.planned.arm.name, o.seed, o.error) for o in proof.outcomes if o.cell is None]
    return Finished(directory, len(outcomes) - len(failed), failed)


def _run(lab: Lab, item: PlannedArm, seed: int) -> Outcome:
    """One cell; whatever it raises becomes its outcome, except what concerns all cells."""
    name = f"{item.arm.name}, seed {seed}"
    lab.say(name)
    try:
        return Outcome(item, seed, run_cell(lab, item.arm.config, item.info, seed))
    except StoreError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise
        text = one_line(error)
        lab.say(f"{name} failed: {text}\n{traceback.format_exc()}")
        return Outcome(item, seed, None, text)


def one_line(error: BaseException) -> str:
    """``Type: text`` without line breaks, short enough for a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def config_text(experiment: Experiment) -> str:
    """The resolved configuration of an experiment as YAML."""
    tree: dict[str, Any] = {
        "experiment": experiment.name,
        "question": experiment.question,
        "hypothesis": experiment.hypothesis,
        "paper": experiment.paper,
        "recipe": experiment.config.recipe,
        "tier": experiment.config.tier,
        "seeds": list(experiment.seeds),
        "control": experiment.config.tree(),
        "arms": {
            arm.name: {name: after for name, (_, after) in arm.diff.items()}
            for arm in experiment.arms[1:]
        },
    }
    return yaml.safe_dump(tree, sort_keys=False, width=100, allow_unicode=True)
