"""The ``dflash`` command: parse, call, print.

Exit status: 0; 2 after a mistake of the user's, with one line on stderr; 1 after anything else.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from dflash.cli.drafters import EVALUATE, GENERATE, TRAIN
from dflash.cli.experiments import ABLATE, LIST, NOISE
from dflash.cli.plans import COST, EXPLAIN
from dflash.cli.store import STORE
from dflash.cli.verb import Verb, VerbGroup, add_verbs
from dflash.model.errors import UserError

VERBS: tuple[Verb | VerbGroup, ...] = (
    ABLATE,
    NOISE,
    EXPLAIN,
    COST,
    TRAIN,
    EVALUATE,
    GENERATE,
    LIST,
    STORE,
)
RESUME = "interrupted; the same command goes on where this one stopped"
DESCRIPTION = "An ablation laboratory for DFlash block-diffusion drafters."
EPILOG = """\
overrides (key=value) follow Hydra's grammar:
  dflash ablate no_qknorm target=qwen3_4b drafter.num_layers=3
  dflash ablate taps data.eval.gsm8k=50 train.loss.gamma=null
  dflash train drafter.features.taps=[1,8,14] seeds=[1]

Finished work is kept in the store and never redone; interrupted work continues.
"""


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
    except BrokenPipeError:  # whoever read our output has read enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse(argv: list[str]) -> argparse.Namespace:
    arguments, rest = build_parser().parse_known_args(argv)
    # argparse does not collect positionals that follow an option; overrides may stand anywhere.
    strange = [word for word in rest if not (arguments.configured and _is_override(word))]
    if strange:
        raise UserError(f"{strange[0]!r} is not understood; see `dflash {arguments.verb} --help`")
    if not arguments.configured:
        return arguments
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
    add_verbs(parser, VERBS, "verb")
    return parser
