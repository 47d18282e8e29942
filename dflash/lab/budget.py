"""Arms of equal budget (``match:``): what an arm costs more must not decide the comparison.

An arm that adds parameters, or whose steps take longer, may win for that reason alone. With
``match`` every arm gets one more setting, chosen so that the stated budget equals the control's:

* ``parameters``, ``draft_flops``: ``drafter.mlp_size``, the inner width of its MLPs;
* ``tokens``, ``wall_time``: ``train.steps``, by supervised slots or by measured seconds per step.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dflash.lab.config import LabConfig, config_from_tree
from dflash.lab.experiment import Arm, Experiment
from dflash.lab.grid import Describe
from dflash.lab.pipeline import check_cell
from dflash.lab.schema import difference, patched
from dflash.lab.stages.answers import build_answers
from dflash.lab.stages.common import Lab
from dflash.lab.stages.pace import build_pace
from dflash.lab.stages.target import TargetInfo, target_info
from dflash.model.errors import UserError
from dflash.model.flops import STEP_CONTEXT, Sizes, Work, forward_flops
from dflash.model.taps import resolve_taps
from dflash.training.config import total_steps

MOST = 1_000_000  # steps; more is no match but a mistake


@dataclass(frozen=True)
class Rule:
    """How one kind of budget is matched.

    Attributes:
        key: dotted name of the setting that every arm gets.
        present: (lab, arm, target) -> its value as the arm is.
        solve: (lab, control, arm, target, seeds) -> its value at the control's budget.
        planned: known without the target's answers or a measurement.
    """

    key: str
    present: Callable[[Lab, LabConfig, TargetInfo], int]
    solve: Callable[[Lab, LabConfig, LabConfig, TargetInfo, tuple[int, ...]], int]
    planned: bool


def match_budget(lab: Lab, experiment: Experiment) -> Experiment:
    """The experiment with its arms' budgets equal to the control's.

    Unchanged without ``match``, and where that has been done.

    Raises:
        UserError: an arm that sets the key itself, or whose budget cannot be matched.
    """
    return _match(lab, experiment, target_info)


def match_planned(lab: Lab, experiment: Experiment, describe: Describe) -> Experiment:
    """The same as far as it can be told without answers or a measurement.

    Raises:
        UserError: see ``match_budget``.
    """
    planned = experiment.match and RULES[experiment.match].planned
    return _match(lab, experiment, describe) if planned else experiment


def match_text(experiment: Experiment) -> str:
    """What ``match`` sets, in words."""
    rule = RULES[experiment.match]
    later = "" if rule.planned else ", known when the answers are there"
    return f"{experiment.match}: {rule.key} of every arm follows from it{later}"


def _match(lab: Lab, experiment: Experiment, describe: Describe) -> Experiment:
    if not experiment.match or any(arm.matched for arm in experiment.arms):
        return experiment
    control, *others = experiment.arms
    infos = [describe(lab, arm.config.target) for arm in others]
    arms = [_matched(lab, experiment, *pair) for pair in zip(others, infos, strict=True)]
    return dataclasses.replace(experiment, arms=(control, *arms))


def _matched(lab: Lab, experiment: Experiment, arm: Arm, info: TargetInfo) -> Arm:
    control, rule = experiment.config, RULES[experiment.match]
    if rule.key in arm.diff:
        raise UserError(f"arm {arm.name} sets {rule.key}, which match={experiment.match} decides")
    try:
        value = rule.solve(lab, control, arm.config, info, experiment.seeds)
        if value == rule.present(lab, arm.config, info):
            return arm  # it costs what the control does
        tree = patched(arm.config.tree(), {rule.key: value})
        config = config_from_tree(tree, arm.config.recipe, arm.config.tier)
        config = dataclasses.replace(config, executor=arm.config.executor)
    except UserError as error:
        raise UserError(f"arm {arm.name}, match={experiment.match}: {error}") from None
    diff = difference(control.tree(), config.tree())
    return dataclasses.replace(arm, config=config, diff=diff, matched={rule.key: value})


def _parameters(config: LabConfig, info: TargetInfo) -> float:
    return check_cell(config, info)


def _draft_flops(config: LabConfig, info: TargetInfo) -> float:
    taps = len(resolve_taps(config.drafter.features.taps, info.num_layers))
    work = Work.of_draft_step(STEP_CONTEXT, config.drafter.block_size)
    return forward_flops(Sizes.of(info.hf_config), config.drafter, taps, work).total


def _width(lab: Lab, config: LabConfig, info: TargetInfo) -> int:
    return config.drafter.mlp_size or int(info.hf_config.get_text_config().intermediate_size)


def _by_width(cost: Callable[[LabConfig, TargetInfo], float]) -> Callable[..., int]:
    """A solver for a cost that grows linearly with the MLPs' inner width."""

    def solve(
        lab: Lab, control: LabConfig, arm: LabConfig, info: TargetInfo, seeds: tuple[int, ...]
    ) -> int:
        size = _width(lab, arm, info)
        wider = dataclasses.replace(arm.drafter, mlp_size=size + 1)
        own = cost(arm, info)
        per_neuron = cost(dataclasses.replace(arm, drafter=wider), info) - own
        found = size + round((cost(control, info) - own) / per_neuron)
        if found < 1:
            raise UserError(f"no MLP is small enough: its width would be {found} instead of {size}")
        return found

    return solve


def _by_tokens(
    lab: Lab, control: LabConfig, arm: LabConfig, info: TargetInfo, seeds: tuple[int, ...]
) -> int:
    """Steps after which the arm has seen as many supervised slots as the control, over all seeds:
    the whole number that comes nearest.
    """
    wanted = sum(itertools.islice(_slots(lab, control, info, seeds), _steps(lab, control, info)))
    seen = 0
    for step, more in enumerate(itertools.islice(_slots(lab, arm, info, seeds), MOST)):
        if seen + more >= wanted:
            return max(1, step + (2 * (wanted - seen) > more))
        seen += more
    raise UserError(f"{MOST} steps show it {seen} supervised slots, the control sees {wanted}")


def _slots(lab: Lab, config: LabConfig, info: TargetInfo, seeds: tuple[int, ...]) -> Iterator[int]:
    """Supervised slots of every optimizer step, summed over the seeds, without end."""
    from dflash.training.supervision import supervised_slots  # Lightning takes seconds to import

    vocab = info.hf_config.get_text_config().vocab_size
    rollouts = build_answers(lab, config, "train", info.identity).rollouts()
    runs = [supervised_slots(config.train, config.drafter, rollouts, vocab, seed) for seed in seeds]
    return (sum(slots(step) for slots in runs) for step in itertools.count())


def _steps(lab: Lab, config: LabConfig, info: TargetInfo) -> int:
    from dflash.training.run import trainable_rows  # Lightning takes seconds to import

    rollouts = build_answers(lab, config, "train", info.identity).rollouts()
    return total_steps(config.train, len(trainable_rows(rollouts, config.train.max_length)))


def _by_time(
    lab: Lab, control: LabConfig, arm: LabConfig, info: TargetInfo, seeds: tuple[int, ...]
) -> int:
    """Steps that take the arm as long as the control takes for its own, by their measured pace."""
    for config in (control, arm):
        if config.train.ranks > 1:
            raise UserError.of("train.devices", config.train.devices, "1 with match=wall_time")
    pace = build_pace(lab, control, arm, info)
    return max(1, round(_steps(lab, control, info) * pace["control"] / pace["arm"]))


RULES: dict[str, Rule] = {
    "parameters": Rule("drafter.mlp_size", _width, _by_width(_parameters), planned=True),
    "draft_flops": Rule("drafter.mlp_size", _width, _by_width(_draft_flops), planned=True),
    "tokens": Rule("train.steps", _steps, _by_tokens, planned=False),
    "wall_time": Rule("train.steps", _steps, _by_time, planned=False),
}
