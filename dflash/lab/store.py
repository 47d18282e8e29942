"""A content-addressed store of what stages produce.

An entry is a directory named ``<stage>-<hash>``, where the hash covers the resolved configuration
that matters to the stage, the keys of its inputs and the version of its code. Work happens in
``<stage>-<hash>.partial``, which survives a kill so that the stage can resume inside it; a manifest
is written last and one rename makes the entry visible. A lock file keeps two processes from
building the same entry: the second waits and then reads. ``journal.jsonl`` has one line for every
entry that was ever built.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dflash.lab.files import is_disk_full, write_text
from dflash.model.errors import UserError

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
HASHED_BELOW = 1 << 20  # bytes; larger files are checked by size only


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
    """

    stage: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    code: str

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
        if self.has(key):
            return self.path(key)
        with no_space_is_user_error(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with locked(self.root / f"{key.name}.lock", key.name):
                if self.has(key):
                    return self.path(key)
                partial = self.root / f"{key.name}.partial"
                partial.mkdir(exist_ok=True)
                start = time.perf_counter()
                work(partial)
                _drop_leftovers(partial)
                _write_manifest(partial, key)
                os.rename(partial, self.path(key))
                self._note(key.name, time.perf_counter() - start)
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
            handle = (self.root / f"{name}.claim.lock").open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            handle.close()
            return None
        return handle

    def journal(self) -> list[dict[str, Any]]:
        """What was built, in order: time (Unix), host, pid, name, seconds of the last part.

        A process that is killed right after an entry became visible leaves no line for it.
        """
        path = self.root / JOURNAL
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [dict(json.loads(line)) for line in lines]

    def _note(self, name: str, seconds: float) -> None:
        """Append to the journal by a single write, which the kernel keeps in one piece."""
        facts = {"time": time.time(), "host": socket.gethostname(), "pid": os.getpid()}
        line = json.dumps(facts | {"name": name, "seconds": round(seconds, 3)}) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.root / JOURNAL, flags, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def entries(self, stage: str) -> list[Path]:
        """Complete entries of a stage, oldest first."""
        found = [path.parent for path in self.root.glob(f"{stage}-*/{MANIFEST}")]
        whole = [path for path in found if path.suffix != ".partial"]
        return sorted(whole, key=lambda path: (path / MANIFEST).stat().st_mtime_ns)


def read_manifest(entry: Path) -> dict[str, Any]:
    """What an entry says about itself: config, inputs, code, files."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise _damaged(entry, f"{MANIFEST} is missing or unreadable") from None
    return dict(manifest)


def check_entry(entry: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        StoreError: names the first file that differs and how to rebuild.
    """
    for name, expected in read_manifest(entry)["files"].items():
        path = entry / name
        if not path.is_file():
            raise _damaged(entry, f"{name} is missing")
        size = path.stat().st_size
        if size != expected["size"]:
            raise _damaged(entry, f"{name} has {size} bytes instead of {expected['size']}")
        if expected["sha256"] and _sha256(path) != expected["sha256"]:
            raise _damaged(entry, f"the content of {name} has changed")


def _damaged(entry: Path, what: str) -> StoreError:
    return StoreError(
        f"store entry {entry} is damaged: {what}; delete that directory and run the same command"
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
            size = path.stat().st_size
            files[name] = {"size": size, "sha256": _sha256(path) if size < HASHED_BELOW else ""}
    parts = {"stage": key.stage, "config": key.config, "inputs": key.inputs, "code": key.code}
    write_text(partial / MANIFEST, json.dumps(parts | {"files": files}, indent=1, sort_keys=True))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an advisory lock that the kernel drops when the process dies, however it dies."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that builds {what}", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


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
