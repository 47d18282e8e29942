"""What every verb of the command line is made of."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.lab.stages.common import Lab


@dataclass(frozen=True)
class Verb:
    """One word after ``dflash``.

    Attributes:
        run: takes the parsed arguments, returns the exit status.
        arguments: adds what is the verb's own; ``overrides`` and the common options come after.
        examples: command lines, shown by ``--help``.
        configured: takes overrides, ``--tier``, ``--target`` and ``--seeds``.
    """

    name: str
    what: str
    run: Callable[[argparse.Namespace], int]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    examples: tuple[str, ...] = ()
    configured: bool = True

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Put the verb's and the common arguments on its parser."""
        self.arguments(parser)
        if self.configured:
            parser.add_argument("overrides", metavar="key=value", nargs="*", help="overrides")
            parser.add_argument("--tier", help="smoke, default, full or paper")
            parser.add_argument("--target", help="a file of experiments/target without .yaml")
            parser.add_argument("--seeds", help="for example 0,1,2")
        parser.add_argument("--store", type=Path, default=Path("store"), help="directory (store)")
        parser.add_argument(
            "--results", type=Path, default=Path("results"), help="directory (results)"
        )
        parser.set_defaults(run=self.run, configured=self.configured)


@dataclass(frozen=True)
class VerbGroup:
    """A word after ``dflash`` that is followed by one of its own verbs."""

    name: str
    what: str
    verbs: tuple[Verb, ...]

    @property
    def examples(self) -> tuple[str, ...]:
        return tuple(line for verb in self.verbs for line in verb.examples)

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Put the group's verbs on its parser."""
        add_verbs(parser, self.verbs, "what")


def add_verbs(
    parser: argparse.ArgumentParser, verbs: Sequence[Verb | VerbGroup], destination: str
) -> None:
    """Give a parser one sub-command per verb; the chosen name goes to ``destination``."""
    commands = parser.add_subparsers(dest=destination, required=True, metavar="VERB")
    for verb in verbs:
        examples = "".join(f"\n  {line}" for line in verb.examples)
        verb.add(
            commands.add_parser(
                verb.name,
                help=verb.what,
                description=verb.what,
                epilog=f"examples:{examples}" if examples else None,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


# Importing PyTorch and transformers takes seconds: verbs check what was asked before that.


def open_lab(arguments: argparse.Namespace) -> Lab:
    """The lab on ``--store``, with progress bars where somebody looks."""
    from transformers.utils import logging

    from dflash.lab.stages.common import Lab
    from dflash.lab.store import Store

    logging.disable_progress_bar()  # one bar per weight file says nothing here
    return Lab(Store(arguments.store), say, progress=sys.stderr.isatty())
