"""A content-addressed store of what stages produce.

An entry is a directory named ``<stage>-<hash>``, where the hash covers the resolved configuration
that matters to the stage, the keys of its inputs and the version of its code. Work happens in
``<stage>-<hash>.partial``, which survives a kill so that the stage can resume inside it; a manifest
is written last and one rename makes the entry visible. A lock file keeps two processes from
building the same entry: the second waits and then reads. ``journal.jsonl`` has one line for every
entry that was ever built. Housekeeping is in ``dflash.lab.upkeep``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dflash.lab.code_version import version_of
from dflash.lab.files import is_disk_full, write_text
from dflash.lab.journal import note, read_journal
from dflash.lab.locks import claim, locked, use_store
from dflash.model.errors import UserError

MANIFEST = "manifest.json"
HASHED_BELOW = 1 << 20  # bytes; the content of larger files is compared only when asked for
NAME = re.compile(r"([a-z_]+)-[0-9a-f]{16}")
PARTIAL, LOCK = ".partial", ".lock"


class StoreError(UserError):
    """The store cannot be read or written; nothing that was finished is lost."""


@dataclass(frozen=True)
class Key:
    """What an entry is made from.

    Attributes:
        stage: short name, first part of the directory's name.
        config: the part of the resolved configuration that changes the entry's content.
        inputs: role -> name of another entry.
        code: version of the stage's code.
        modules: module -> hash of that code, so that a change can be named; not part of the name.
    """

    stage: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    code: str
    modules: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        parts = {"config": self.config, "inputs": self.inputs, "code": self.code}
        text = json.dumps(parts, sort_keys=True)
        return f"{self.stage}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class Store:
    """Entries below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: Key) -> Path:
        return self.root / key.name

    def has(self, key: Key) -> bool:
        """Is the entry there and complete? A damaged one raises, see ``open``."""
        if not self.path(key).is_dir():
            return False
        self.open(key)
        return True

    def open(self, key: Key) -> Path:
        """The directory of a complete entry.

        Raises:
            StoreError: a file of it is missing, shortened or changed.
        """
        path = self.path(key)
        check_entry(path)
        return path

    def build(self, key: Key, work: Callable[[Path], None]) -> Path:
        """The entry's directory; ``work`` fills it if it is not there yet.

        Args:
            work: called with the directory to fill. It finds there what an interrupted call left.

        Raises:
            StoreError: damaged entry, or no space left (what was written stays for resumption).
        """
        with no_space_is_user_error(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            use_store(self.root)
            if self.has(key):
                return self.path(key)
            with locked(self.root / f"{key.name}{LOCK}", key.name):
                if self.has(key):
                    return self.path(key)
                partial = self.root / f"{key.name}{PARTIAL}"
                partial.mkdir(exist_ok=True)
                start = time.perf_counter()
                work(partial)
                _drop_leftovers(partial)
                _write_manifest(partial, key)
                os.rename(partial, self.path(key))
                note(self.root, key.name, time.perf_counter() - start)
        return self.path(key)

    def claim(self, name: str, wait: bool = False) -> IO[str] | None:
        """Exclusive right to some work as long as the returned file is open, or None if taken.

        The kernel gives it up when the process dies. It only shares work out: who builds an entry
        without a claim is still safe.

        Args:
            wait: until it is free.
        """
        with no_space_is_user_error(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            use_store(self.root)
            return claim(self.root / f"{name}.claim{LOCK}", wait)

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Hold a claim, or wait for it."""
        claim = self.claim(name, wait=True)
        assert claim is not None
        with claim:
            yield

    def journal(self) -> list[dict[str, Any]]:
        """What was ever built, in order, see ``dflash.lab.journal``."""
        return read_journal(self.root)

    def entries(self, stage: str = "") -> list[Path]:
        """Complete entries, of one stage if it is given, oldest first."""
        found = [path for path in self.directories() if (path / MANIFEST).is_file()]
        chosen = [path for path in found if stage in ("", stage_of(path.name))]
        return sorted(chosen, key=lambda path: (path / MANIFEST).stat().st_mtime_ns)

    def directories(self) -> list[Path]:
        """Everything named like a complete entry, by name; a damaged one may lack its manifest."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if NAME.fullmatch(path.name))


def stage_of(name: str) -> str:
    """The stage in an entry's name."""
    return name.rpartition("-")[0]


def read_manifest(entry: Path) -> dict[str, Any]:
    """What an entry says about itself: config, inputs, code, modules, files.

    Raises:
        StoreError: there is no manifest, or it is not this entry's.
    """
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        parts = {name: manifest[name] for name in ("stage", "config", "inputs", "code")}
        modules, _ = manifest.get("modules", {}), manifest["files"]  # older ones name no modules
    except (OSError, ValueError, TypeError, KeyError):
        raise _damaged(entry, f"{MANIFEST} is missing or unreadable") from None
    if Key(**parts).name != entry.name or (modules and version_of(modules) != parts["code"]):
        raise _damaged(entry, f"{MANIFEST} is of another entry, or was changed")
    return dict(manifest)


def check_entry(entry: Path, deep: bool = False) -> None:
    """Compare every file with the manifest.

    Args:
        deep: also the content of large files, which takes as long as reading them.

    Raises:
        StoreError: names the first file that differs and how to rebuild.
    """
    for name, expected in read_manifest(entry)["files"].items():
        try:
            _check_file(entry, name, expected, deep)
        except (FileNotFoundError, IsADirectoryError):  # also one that vanishes while it is read
            raise _damaged(entry, f"{name} is missing") from None


def _check_file(entry: Path, name: str, expected: Mapping[str, Any], deep: bool) -> None:
    path = entry / name
    size = path.stat().st_size
    if size != expected["size"]:
        raise _damaged(entry, f"{name} has {size} bytes instead of {expected['size']}")
    if (deep or size < HASHED_BELOW) and file_hash(path) != expected["sha256"]:
        raise _damaged(entry, f"the content of {name} has changed")


def file_hash(path: Path) -> str:
    """SHA-256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(entry: Path, what: str) -> StoreError:
    return StoreError(
        f"store entry {entry} is damaged: {what}; `dflash store check --repair` sets it aside, or "
        "delete that directory, and then run the same command"
    )


def _drop_leftovers(partial: Path) -> None:
    """Remove what writes that were killed half way left: their temporary names begin with a dot."""
    for path in sorted(partial.rglob(".*"), reverse=True):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write_manifest(partial: Path, key: Key) -> None:
    files = {}
    for path in sorted(partial.rglob("*")):
        name = path.relative_to(partial).as_posix()
        if path.is_file() and name != MANIFEST:
            files[name] = {"size": path.stat().st_size, "sha256": file_hash(path)}
    parts = {"stage": key.stage, "config": key.config, "inputs": key.inputs, "code": key.code}
    text = parts | {"modules": key.modules, "files": files}
    write_text(partial / MANIFEST, json.dumps(text, indent=1, sort_keys=True))


@contextlib.contextmanager
def no_space_is_user_error(root: Path) -> Iterator[None]:
    """Turn "no space left on device", from whatever library, into one clear line."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        place = next(path for path in (root, *root.parents) if path.exists())
        free = shutil.disk_usage(place).free / 2**20
        raise StoreError(
            f"no space left for {root} ({free:.0f} MiB free); finished work is kept: "
            "free some space or choose another --store, then run the same command"
        ) from error
