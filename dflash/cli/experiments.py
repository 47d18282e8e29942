"""Verbs about experiments: ``ablate``, ``noise`` and ``list``."""

from __future__ import annotations

import argparse
import sys

from dflash.cli.verb import Verb, open_lab, say


def name_of_experiment(parser: argparse.ArgumentParser) -> None:
    """The positional NAME."""
    parser.add_argument("name", metavar="NAME", help="see `dflash list`, or a YAML file")


def _ablate_arguments(parser: argparse.ArgumentParser) -> None:
    name_of_experiment(parser)
    parser.add_argument(
        "--together",
        action="store_true",
        help="train the arms of a seed from one pass over the target's features (data.mode=online)",
    )


def _list(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment_file import list_experiments

    questions = list_experiments()
    width = max(map(len, questions))
    for name, question in questions.items():
        say(f"{name:<{width}}  {question}")
    return 0


def _ablate(arguments: argparse.Namespace) -> int:
    return _run(arguments, arguments.name, arguments.together)


def _noise(arguments: argparse.Namespace) -> int:
    return _run(arguments, "noise")


def _run(arguments: argparse.Namespace, name: str, together: bool = False) -> int:
    """Run an experiment, write everything that derives from its tables and print the summary."""
    from dflash.lab.experiment import load_experiment

    experiment = load_experiment(name, arguments.overrides)

    from analysis.report import write_report
    from dflash.lab.plan.quota import Quota
    from dflash.lab.run import run_experiment

    finished = run_experiment(
        open_lab(arguments), experiment, arguments.results, together, Quota.of_environment()
    )
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
    _ablate_arguments,
    (
        "dflash ablate no_qknorm",
        "dflash ablate layers --tier smoke --seeds 0,1 train.lr=5e-4",
        "dflash ablate my_question.yaml",
        "dflash ablate taps data.mode=online --together",
    ),
)
NOISE = Verb(
    "noise",
    "run identical arms and store how far apart they come out: the floor of τ and of speed",
    _noise,
    examples=("dflash noise", "dflash noise --target qwen3_4b --tier paper"),
)
LIST = Verb("list", "list the experiments with their questions", _list)
