"""A finished experiment as one folder that another machine can read without a store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from dflash.lab.bundle import seal
from dflash.lab.export_readme import README
from dflash.lab.files import write_text
from dflash.lab.folders import EXPERIMENT, FOLDER, used_entries
from dflash.lab.results import Row, read_table
from dflash.lab.stages.answers import FACTS, OVERLAP, ROLLOUTS
from dflash.lab.stages.train import Trained
from dflash.lab.store import MANIFEST, Store, check_entry, read_manifest, stage_of
from dflash.model.errors import UserError

NEEDED = ("summary.md", "summary.csv", "config.yaml", "data_card.json", EXPERIMENT)
CHECKPOINTS, ANSWERS = "checkpoints", "rollouts"


@dataclass(frozen=True)
class Source:
    """What is exported: a results folder, its runs, and the store entries of each run."""

    store: Store
    folder: Path
    runs: list[Row]
    entries: dict[str, list[str]]

    def drafters(self) -> Iterator[tuple[str, Path]]:
        """(run, train entry) of every run that has trained."""
        for row in self.runs:
            if row["entry"]:
                yield row["run_id"], self.store.root / row["entry"]

    def answers(self) -> list[str]:
        """Names of the entries that hold the target's answers."""
        used = {name for names in self.entries.values() for name in names}
        return sorted(name for name in used if stage_of(name) == ANSWERS)


def export_experiment(store: Store, folder: Path, directory: Path, checkpoints: bool) -> None:
    """Copy ``results/<experiment>`` with what it needs of the store to a new folder.

    Args:
        checkpoints: with the drafter of every run, in the public layout.

    Raises:
        UserError: the folder exists, or the experiment has not finished.
        StoreError: an entry that it needs is missing or damaged.
    """
    if directory.exists():
        raise UserError.of("DIR", str(directory), "a folder that does not exist")
    source = _finished(store, folder)
    with _becoming(directory) as place:
        shutil.copytree(folder, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
        for name in source.answers():
            _copy_answers(store.root / name, place / ANSWERS / name)
        if checkpoints:
            for run, entry in source.drafters():
                check_entry(entry, deep=True)
                trained = Trained.of_entry(entry)
                shutil.copytree(trained.checkpoint, place / CHECKPOINTS / run)
        _copy_manifests(source, place / FOLDER / "entries")
        write_text(place / "README.md", _readme(source, checkpoints))
        seal(place)


def _finished(store: Store, folder: Path) -> Source:
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    entries = used_entries(folder)
    if missing or entries is None:
        what = missing[0] if missing else FOLDER
        raise UserError(f"{folder} has no {what}: run `dflash ablate {folder.name}` to its end")
    runs = read_table(folder / "runs.parquet")
    absent = sorted(entries.keys() - {row["run_id"] for row in runs})
    if absent:
        todo = f"{absent[0]} and {len(absent) - 1} more" if len(absent) > 1 else absent[0]
        raise UserError(
            f"{folder} has not finished, {todo} is missing: give the same command as before again"
        )
    for row in runs:
        if row["entry"] and row["entry"] not in entries.get(row["run_id"], []):
            raise UserError(
                f"{folder}: {row['run_id']} is of {row['entry']}, which is not in its lineage: "
                "give the same command as before again"
            )
    return Source(store, folder, runs, entries)


@contextmanager
def _becoming(directory: Path) -> Iterator[Path]:
    """A hidden neighbour that takes the name of ``directory`` when it is complete."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        yield place
        place.chmod(0o755)
        os.rename(place, directory)
    finally:
        shutil.rmtree(place, ignore_errors=True)  # nothing is there after the renaming


def _copy_answers(entry: Path, place: Path) -> None:
    check_entry(entry, deep=True)
    place.mkdir(parents=True)
    for name in (ROLLOUTS, FACTS, OVERLAP):  # only those to train on were held against others
        if (entry / name).is_file():
            shutil.copy(entry / name, place / name)


def _copy_manifests(source: Source, place: Path) -> None:
    """What every entry was made from: configuration, inputs and a hash per module of its code."""
    place.mkdir(parents=True)
    for name in sorted({name for names in source.entries.values() for name in names}):
        if (source.store.root / name).is_dir():  # a failed run has none of its last stages
            read_manifest(source.store.root / name)
            shutil.copy(source.store.root / name / MANIFEST, place / f"{name}.json")


def _readme(source: Source, checkpoints: bool) -> str:
    """What is what in the exported folder."""
    config = yaml.safe_load((source.folder / "config.yaml").read_text(encoding="utf-8"))
    return README.format(
        experiment=config["experiment"],
        question=config["question"],
        commits=", ".join(sorted({row["commit"] for row in source.runs})),
        checkpoints="`checkpoints/<run>/`" if checkpoints else "left out",
        runs="\n".join(_run_line(source, row, checkpoints) for row in source.runs),
    )


def _run_line(source: Source, row: Row, checkpoints: bool) -> str:
    run = row["run_id"]
    drafter = f"`{CHECKPOINTS}/{run}`" if checkpoints and row["entry"] else ""
    train, evaluation = _answers_of(source, run)
    return f"| {run} | {row['status']} | {drafter} | {train} | {evaluation} |"


def _answers_of(source: Source, run: str) -> tuple[str, str]:
    """Entries with the answers that a run was trained on and measured on; empty for none."""
    train = evaluation = ""
    for name in source.entries[run]:
        if (source.store.root / name).is_dir():
            inputs = read_manifest(source.store.root / name)["inputs"]
            train = inputs.get("rollouts" if stage_of(name) == "train" else "train", train)
            evaluation = inputs.get("evaluation", evaluation)
    return train, evaluation
