"""Verbs that tell what an experiment is and costs, without running it: ``explain``, ``cost``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dflash.cli.experiments import name_of_experiment
from dflash.cli.verb import Verb, open_lab, say

if TYPE_CHECKING:
    from dflash.lab.plan.entries import Plan
    from dflash.lab.plan.rates import Stated
    from dflash.lab.stages.common import Lab


def _shared_arguments(parser: argparse.ArgumentParser) -> None:
    name_of_experiment(parser)
    parser.add_argument("--throughput", type=float, help="FLOP/s that training reaches")
    parser.add_argument("--flops", type=float, help="peak FLOP/s of one device, with --mfu")
    parser.add_argument("--mfu", type=float, help="share of the peak that is reached, 0 to 1")
    parser.add_argument("--prompt-tokens", type=int, help="mean length, where none is stored")
    parser.add_argument("--answer-tokens", type=int, help="mean length, where none is stored")


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    _shared_arguments(parser)
    parser.add_argument("--context", type=int, help="of the draft step (1024)")


def _cost_arguments(parser: argparse.ArgumentParser) -> None:
    _shared_arguments(parser)
    parser.add_argument("--answer-rate", type=float, help="tokens/s of the target's batches")
    parser.add_argument("--price", type=float, help="of one GPU for an hour")
    parser.add_argument(
        "--quota", help='"gpu_hours=10 disk_gb=200 tokens=1e9", any of them ($DFLASH_QUOTA)'
    )


def _planned(arguments: argparse.Namespace) -> tuple[Lab, Plan, Stated]:
    from dflash.lab.experiment import load_experiment

    experiment = load_experiment(arguments.name, arguments.overrides)

    from dflash.lab.plan.data import Assumed
    from dflash.lab.plan.entries import make_plan
    from dflash.lab.plan.rates import Stated

    stated = Stated(arguments.throughput, arguments.flops, arguments.mfu)
    assumed = Assumed(arguments.prompt_tokens, arguments.answer_tokens)
    lab = open_lab(arguments)
    return lab, make_plan(lab, experiment, assumed), stated


def _explain(arguments: argparse.Namespace) -> int:
    lab, plan, stated = _planned(arguments)

    from dflash.lab.plan.explain import explain_text
    from dflash.lab.plan.rates import expected_rate
    from dflash.model.flops import STEP_CONTEXT

    rate = stated.rate() or expected_rate(lab.store, plan.cells[0])
    context = STEP_CONTEXT if arguments.context is None else arguments.context
    say(explain_text(lab, plan, rate, context))
    return 0


def _cost(arguments: argparse.Namespace) -> int:
    lab, plan, stated = _planned(arguments)

    from dflash.lab.plan.bill import bill_of, speed_of
    from dflash.lab.plan.cost import cost_text
    from dflash.lab.plan.quota import Quota, check_quota

    given = arguments.quota
    quota = Quota.of_environment() if given is None else Quota.parse(given)
    speed = speed_of(lab, plan, stated.rate() or quota.rate(), arguments.answer_rate)
    bill = bill_of(plan, speed)
    say(cost_text(lab, plan, bill, speed, arguments.price))
    check_quota(quota, bill)
    return 0


EXPLAIN = Verb(
    "explain",
    "show what an experiment is, without running it",
    _explain,
    _explain_arguments,
    (
        "dflash explain no_qknorm",
        "dflash explain taps --target qwen3_4b --tier paper",
        "dflash explain layers --throughput 25e9",
    ),
)
COST = Verb(
    "cost",
    "print the bill of an experiment on a GPU",
    _cost,
    _cost_arguments,
    (
        "dflash cost no_qknorm --target qwen3_4b --tier paper --flops 400e12 --mfu 0.35",
        'dflash cost taps --target qwen3_8b --tier paper --quota "disk_gb=200"',
    ),
)
