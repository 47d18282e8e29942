"""The store entries that an experiment would use now, found without building anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash.lab.budget import RULES, match_planned
from dflash.lab.experiment import Experiment
from dflash.lab.grid import plan_arms, run_id_of
from dflash.lab.lineage import experiment_keys
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info, target_key
from dflash.lab.store import Key
from dflash.lab.upkeep.catalogue import Catalogue
from dflash.model.errors import UserError


@dataclass
class Wanted:
    """A key, and the runs that use its entry."""

    key: Key
    runs: list[str] = field(default_factory=list)


def wanted_entries(lab: Lab, experiment: Experiment, arm: str | None = None) -> dict[str, Wanted]:
    """Name -> what an experiment, or one arm of it, would use now, in the order of building.

    All other keys need what the entry of the target says: without it, only that one is given.

    Raises:
        UserError: an arm that the experiment does not have, or one that cannot run.
    """
    if not _planned(experiment):
        raise UserError(
            f"match={experiment.match} is decided when the experiment runs; name entries"
        )
    arms = experiment.arms if arm is None else (experiment.arm(arm),)
    targets = {item.name: [target_key(item.config.target)] for item in experiment.arms}
    if not all(lab.store.has(key) for keys in targets.values() for key in keys):
        return _by_name({item.name: targets[item.name] for item in arms})
    matched = match_planned(lab, experiment, target_info)
    runs = experiment_keys(matched, plan_arms(lab, matched))
    own = {run_id_of(item, seed) for item in arms for seed in experiment.seeds}
    return _by_name({run: keys for run, keys in runs.items() if arm is None or run in own})


def kept_entries(lab: Lab, catalogue: Catalogue, experiment: Experiment) -> set[str]:
    """Names of what an experiment would use now; of what its results used, where a match that is
    decided as it runs says more than can be planned.

    Raises:
        UserError: an arm that cannot run, or such a match without results.
    """
    if _planned(experiment):
        return set(wanted_entries(lab, experiment))
    if experiment.name not in catalogue.experiments:
        allowed = f"an experiment that has run, as match={experiment.match} needs that"
        raise UserError.of("--keep", experiment.name, allowed)
    return catalogue.experiments[experiment.name]


def _planned(experiment: Experiment) -> bool:
    return not experiment.match or RULES[experiment.match].planned


def _by_name(runs: Mapping[str, Sequence[Key]]) -> dict[str, Wanted]:
    wanted: dict[str, Wanted] = {}
    for run, keys in runs.items():
        for key in keys:
            wanted.setdefault(key.name, Wanted(key)).runs.append(run)
    return wanted
