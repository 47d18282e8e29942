"""The ``dflash`` command: parse, call, print.

Exit status: 0; 2 after a mistake of the user's, with one line on stderr; 1 after anything else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dflash.model.errors import UserError

if TYPE_CHECKING:
    from dflash.lab.stages.common import Lab

RESUME = "interrupted; the same command goes on where this one stopped"
DESCRIPTION = "An ablation laboratory for DFlash block-diffusion drafters."
EPILOG = """\
overrides (key=value) follow Hydra's grammar:
  dflash ablate no_qknorm target=qwen3_4b drafter.num_layers=3
  dflash ablate taps data.eval.gsm8k=50 train.loss.gamma=null
  dflash train drafter.features.taps=[1,8,14] seeds=[1]

Finished work is kept in the store and never redone; interrupted work continues.
"""
EXAMPLES = {
    "ablate": "examples:\n  dflash ablate no_qknorm\n"
    "  dflash ablate layers --tier smoke --seeds 0,1 train.lr=5e-4\n"
    "  dflash ablate my_question.yaml",
    "train": "examples:\n  dflash train\n  dflash train no_qknorm/no_qknorm --tier smoke\n"
    "  dflash train drafter.block_size=8 --seeds 3 --output my_drafter",
    "evaluate": "example:\n  dflash evaluate path/to/checkpoint data.eval.gsm8k=50",
    "generate": 'examples:\n  dflash generate "Write a haiku about rivers."\n'
    '  dflash generate "Why is the sky blue?" --drafter path/to/checkpoint --new-tokens 200',
}


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line, like every other mistake of the user's."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        return int(arguments.run(arguments))
    except UserError as error:
        print(f"dflash: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"dflash: {RESUME}", file=sys.stderr)
        return 1


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse does not collect positionals that follow an option; overrides may stand anywhere.
    strange = [word for word in rest if not _is_override(word)]
    if strange:
        raise UserError(f"{strange[0]!r} is not understood; see `dflash {arguments.verb} --help`")
    if arguments.verb == "train" and "=" in (arguments.name or ""):
        rest, arguments.name = [arguments.name, *rest], None
    named = {"tier": arguments.tier, "target": arguments.target}
    options = [f"{key}={value}" for key, value in named.items() if value is not None]
    if arguments.seeds is not None:
        options.append(f"seeds=[{arguments.seeds}]")
    arguments.overrides = [*options, *arguments.overrides, *rest]
    return arguments


def _is_override(word: str) -> bool:
    return not word.startswith("--") and ("=" in word or word.startswith("~"))


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser("dflash", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, what: str, run: object) -> argparse.ArgumentParser:
        sub = verbs.add_parser(
            name,
            help=what,
            description=what,
            epilog=EXAMPLES.get(name),
            formatter_class=raw,
            allow_abbrev=False,
        )
        sub.set_defaults(run=run)
        return sub

    ablate = verb("ablate", "run an experiment and print its summary", _ablate)
    ablate.add_argument("name", metavar="NAME", help="see `dflash list`, or a YAML file")
    train = verb("train", "train one drafter and print its path", _train)
    train.add_argument(
        "name", metavar="NAME", nargs="?", help="EXPERIMENT (its control) or EXPERIMENT/ARM"
    )
    train.add_argument("--output", type=Path, help="copy the checkpoint to this new folder")
    evaluate = verb("evaluate", "replay and decode with a trained drafter", _evaluate)
    evaluate.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="folder of a drafter")
    generate = verb("generate", "stream an answer by speculative decoding", _generate)
    generate.add_argument("prompt", metavar="PROMPT")
    generate.add_argument("--drafter", type=Path, help="checkpoint (default: the latest trained)")
    generate.add_argument("--new-tokens", type=int, default=256, help="longest answer (256)")
    generate.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (0)")
    for sub in (ablate, train, evaluate, generate):
        _common(sub)
    _common(verb("list", "list the experiments with their questions", _list))
    return parser


def _common(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("overrides", metavar="key=value", nargs="*", help="configuration overrides")
    sub.add_argument("--tier", help="smoke, default, full or paper")
    sub.add_argument("--target", help="a file of experiments/target without .yaml")
    sub.add_argument("--seeds", help="for example 0,1,2")
    sub.add_argument("--store", type=Path, default=Path("store"), help="directory (store)")
    sub.add_argument("--results", type=Path, default=Path("results"), help="directory (results)")


def _say(text: str) -> None:
    print(text, flush=True)


# Importing PyTorch and transformers takes seconds: what was asked is checked before that.


def _list(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment import list_experiments

    questions = list_experiments()
    width = max(map(len, questions))
    for name, question in questions.items():
        _say(f"{name:<{width}}  {question}")
    return 0


def _ablate(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment import load_experiment

    experiment = load_experiment(arguments.name, arguments.overrides)

    from analysis.report import write_report
    from dflash.lab.run import run_experiment

    finished = run_experiment(_lab(arguments), experiment, arguments.results)
    report = write_report(finished.directory, ("png",) if finished.measured else ())
    _say(report.read_text(encoding="utf-8"))
    _say(f"tables, summary and figures: {finished.directory}")
    for arm, seed, error in finished.failed:
        print(f"failed: {arm}, seed {seed}: {error}", file=sys.stderr)
    return 1 if finished.failed else 0


def _train(arguments: argparse.Namespace) -> int:
    from dflash.lab.config import compose_config
    from dflash.lab.experiment import arm_config

    if arguments.name is None:
        config = compose_config(arguments.overrides)
    else:
        config = arm_config(arguments.name, arguments.overrides)

    from dflash.lab.single import train_drafters

    for path in train_drafters(_lab(arguments), config, arguments.output):
        _say(str(path))
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from dflash.lab.config import compose_config

    for override in arguments.overrides:
        if override.lstrip("+~").startswith("drafter"):
            raise UserError(f"{override}: the checkpoint decides what the drafter is")
    config = compose_config(arguments.overrides)

    from dflash.lab.single import evaluate_checkpoint

    for line in evaluate_checkpoint(_lab(arguments), config, arguments.checkpoint):
        _say(line)
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from dflash.lab.config import compose_config

    config = compose_config(arguments.overrides)

    from dflash.lab.generate import stream_answer

    stream_answer(
        _lab(arguments),
        config,
        arguments.prompt,
        drafter=arguments.drafter,
        new_tokens=arguments.new_tokens,
        temperature=arguments.temperature,
    )
    return 0


def _lab(arguments: argparse.Namespace) -> Lab:
    from transformers.utils import logging

    from dflash.lab.stages.common import Lab
    from dflash.lab.store import Store

    logging.disable_progress_bar()  # one bar per weight file says nothing here
    return Lab(Store(arguments.store), _say, progress=sys.stderr.isatty())
