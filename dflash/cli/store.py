"""``dflash store …``: verbs about the store and what is exported from it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dflash.cli.verb import Verb, VerbGroup, open_lab, say
from dflash.model.errors import UserError

if TYPE_CHECKING:
    from dflash.lab.upkeep.catalogue import Catalogue


def _open(arguments: argparse.Namespace) -> Catalogue:
    from dflash.lab.locks import use_store
    from dflash.lab.store import Store
    from dflash.lab.upkeep.catalogue import Catalogue

    if not arguments.store.is_dir():
        raise UserError.of("--store", str(arguments.store), "the folder of a store")
    use_store(arguments.store)
    return Catalogue(Store(arguments.store), arguments.results)


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", help="only entries of one stage, for example train")


def _list(arguments: argparse.Namespace) -> int:
    from dflash.lab.upkeep.catalogue import list_lines

    for line in list_lines(_open(arguments), arguments.stage):
        say(line)
    return 0


def _why_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a store entry, EXPERIMENT or EXPERIMENT/ARM")


def _why(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment import load_experiment, split_arm
    from dflash.lab.store import NAME

    if NAME.fullmatch(arguments.name):
        from dflash.lab.upkeep.why import why_entry

        lines = why_entry(_open(arguments), arguments.name)
    else:
        name, arm = split_arm(arguments.name)
        experiment = load_experiment(name, arguments.overrides)

        from dflash.lab.upkeep.wanted import wanted_entries
        from dflash.lab.upkeep.why import why_experiment

        catalogue = _open(arguments)
        lines = why_experiment(catalogue, wanted_entries(open_lab(arguments), experiment, arm))
    for line in lines:
        say(line)
    return 0


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="read large files, too")
    parser.add_argument("--repair", action="store_true", help="set damaged entries aside")


def _check(arguments: argparse.Namespace) -> int:
    from dflash.lab.upkeep.check import damages

    catalogue = _open(arguments)
    found = 0
    for damage in damages(catalogue.store, arguments.deep, arguments.repair):
        found += 1
        say(f"{damage.reason}" + (f"; moved to {damage.moved}" if damage.moved else ""))
    what = "every file was read" if arguments.deep else "large files by size only, see --deep"
    say(f"{found} damaged, {len(catalogue.store.directories())} entries in place ({what})")
    return 1 if found else 0


def _gc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="remove; otherwise it is only shown")
    parser.add_argument("--dry-run", action="store_true", help="only show (the default)")
    parser.add_argument("--older-than", default="0s", help="for example 30d or 12h")
    parser.add_argument(
        "--keep", nargs="+", default=[], metavar="EXPERIMENT", help="keep what it would use now"
    )


def _gc(arguments: argparse.Namespace) -> int:
    from dflash.lab.experiment import load_experiment
    from dflash.lab.upkeep.words import parse_age

    if arguments.yes and arguments.dry_run:
        raise UserError("--yes and --dry-run contradict each other")
    older_than = parse_age(arguments.older_than)
    experiments = [load_experiment(name) for name in arguments.keep]

    from dflash.lab.upkeep.gc import collect
    from dflash.lab.upkeep.wanted import kept_entries

    catalogue = _open(arguments)
    lab = open_lab(arguments)
    keep = {name for item in experiments for name in kept_entries(lab, catalogue, item)}
    for folder in catalogue.silent:
        say(f"{folder} does not say which entries it used, so they are not kept for it")
    for line in collect(catalogue, keep, older_than, arguments.yes):
        say(line)
    return 0


def _log(arguments: argparse.Namespace) -> int:
    from dflash.lab.upkeep.journal import log_lines

    for line in log_lines(arguments.store):
        say(line)
    return 0


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help="a folder of --results")
    parser.add_argument("directory", metavar="DIR", type=Path, help="a folder that does not exist")
    parser.add_argument("--without-checkpoints", action="store_true", help="leave drafters out")


def _export(arguments: argparse.Namespace) -> int:
    from dflash.lab.export import export_experiment

    if not (arguments.results / arguments.experiment).is_dir():
        known = sorted(path.parent.name for path in arguments.results.glob("*/runs.parquet"))
        allowed = f"{', '.join(known) or 'nothing yet'} in {arguments.results}/"
        raise UserError.of("EXPERIMENT", arguments.experiment, allowed)
    export_experiment(
        _open(arguments).store,
        arguments.results / arguments.experiment,
        arguments.directory,
        checkpoints=not arguments.without_checkpoints,
    )
    say(str(arguments.directory))
    return 0


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="an exported folder")


def _verify(arguments: argparse.Namespace) -> int:
    from dflash.lab.bundle import faults, listed

    found = list(faults(arguments.directory))
    for fault in found:
        say(fault)
    say(f"{len(found)} faults, {len(listed(arguments.directory))} files listed")
    return 1 if found else 0


STORE = VerbGroup(
    "store",
    "look after the store, and export from it",
    (
        Verb(
            "list",
            "entries with size, age, what they are and who uses them",
            _list,
            _list_arguments,
            ("dflash store list --stage train",),
            configured=False,
        ),
        Verb(
            "why",
            "why an entry would be built: configuration, inputs or code that differ",
            _why,
            _why_arguments,
            (
                "dflash store why no_qknorm",
                "dflash store why no_qknorm/no_qknorm train.lr=1e-3 --seeds 0",
                "dflash store why train-0123456789abcdef",
            ),
        ),
        Verb(
            "check",
            "hold every entry against its manifest; status 1 if one is damaged",
            _check,
            _check_arguments,
            ("dflash store check --deep", "dflash store check --repair"),
            configured=False,
        ),
        Verb(
            "gc",
            "show, or remove, what no result needs",
            _gc,
            _gc_arguments,
            ("dflash store gc", "dflash store gc --yes --older-than 30d --keep layers taps"),
            configured=False,
        ),
        Verb("log", "what was built, when, where and how long it took", _log, configured=False),
        Verb(
            "export",
            "one experiment as a folder that needs no store",
            _export,
            _export_arguments,
            ("dflash store export no_qknorm ~/no_qknorm",),
            configured=False,
        ),
        Verb(
            "verify",
            "hold an exported folder against its MANIFEST; status 1 if it differs",
            _verify,
            _verify_arguments,
            ("dflash store verify ~/no_qknorm",),
            configured=False,
        ),
    ),
)
