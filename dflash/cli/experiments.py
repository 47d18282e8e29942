"""Verbs about experiments: ``ablate`` and ``list``."""

from __future__ import annotations

import argparse
import sys

from dflash.cli.verb import Verb, open_lab, say


def name_of_experiment(parser: argparse.ArgumentParser) -> None:
    """The positional NAME."""
    parser.add_argument("name", metavar="NAME", help="see `dflash list`, or a YAML file")


def _list(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment import list_experiments

    questions = list_experiments()
    width = max(map(len, questions))
    for name, question in questions.items():
        say(f"{name:<{width}}  {question}")
    return 0


def _ablate(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment import load_experiment

    experiment = load_experiment(arguments.name, arguments.overrides)

    from analysis.report import write_report
    from dflash.lab.plan.quota import Quota, hold_to_quota
    from dflash.lab.run import run_experiment

    lab = open_lab(arguments)
    hold_to_quota(lab, experiment, Quota.of_environment())
    finished = run_experiment(lab, experiment, arguments.results)
    report = write_report(finished.directory, ("png",) if finished.measured else ())
    say(report.read_text(encoding="utf-8"))
    say(f"tables, summary and figures: {finished.directory}")
    for arm, seed, error in finished.failed:
        print(f"failed: {arm}, seed {seed}: {error}", file=sys.stderr)
    return 1 if finished.failed else 0


ABLATE = Verb(
    "ablate",
    "run an experiment and print its summary",
    _ablate,
    name_of_experiment,
    (
        "dflash ablate no_qknorm",
        "dflash ablate layers --tier smoke --seeds 0,1 train.lr=5e-4",
        "dflash ablate my_question.yaml",
    ),
)
LIST = Verb("list", "list the experiments with their questions", _list)
