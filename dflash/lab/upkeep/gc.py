"""Garbage: what nobody builds and no result needs.

An unfinished build (``.partial``) goes when nobody holds its lock. Entries and lock files go only
while no other process uses the store: one that has found an entry expects it to stay.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash.lab.locks import only_user, try_locked
from dflash.lab.store import LOCK, PARTIAL, StoreError
from dflash.lab.upkeep.catalogue import Catalogue
from dflash.lab.upkeep.check import DAMAGED
from dflash.lab.upkeep.words import size_text

TRASH = ".trash-"  # a removal that was killed leaves one behind


@dataclass(frozen=True)
class Garbage:
    """A path that can go, its bytes on disk and the reason in words."""

    path: Path
    size: int
    reason: str


def garbage(catalogue: Catalogue, keep: Collection[str], older_than: float) -> list[Garbage]:
    """What can go.

    Args:
        keep: names of entries to keep with all they were made from, beside those of results.
        older_than: seconds; what was written since then stays.
    """
    root = catalogue.store.root
    needed = {name for names in catalogue.experiments.values() for name in names} | set(keep)
    young = {name for name in catalogue.manifests if catalogue.age(name) < older_than}
    kept = catalogue.closure(needed | young)
    found = {root / name: "no result needs it" for name in catalogue.manifests if name not in kept}
    for path in root.glob(f"*{PARTIAL}"):
        if path.name.removesuffix(PARTIAL) not in kept:
            found[path] = "unfinished, and no result needs it"
    for path in root.glob(f"*{LOCK}"):
        if not path.with_suffix(PARTIAL).exists():
            found[path] = "lock of no build"
    found |= dict.fromkeys(root.glob(f"{DAMAGED}/*"), "set aside as damaged")
    found |= dict.fromkeys(root.glob(f"{TRASH}*"), "removal that was interrupted")
    old = [path for path in sorted(found) if _age(path) >= older_than]
    return [Garbage(path, _size(path), found[path]) for path in old]


def collect(
    catalogue: Catalogue, keep: Collection[str], older_than: float, remove: bool
) -> Iterator[str]:
    """Name what can go, or remove it; yields a line for each and the total.

    Raises:
        StoreError: something is to be removed from a store that cannot be written.
    """
    root = catalogue.store.root
    if not remove:
        found = garbage(catalogue, keep, older_than)
        yield from (f"would remove {_text(item)}" for item in found)
        yield f"{_total(found)} could be removed; --yes removes"
        return
    if not os.access(root, os.W_OK):
        raise StoreError(f"the store {root} cannot be written by this user")
    removed = []
    with only_user(root) as alone:
        for item in garbage(catalogue, keep, older_than):
            done = _remove(root, item, alone)
            removed += [item] if done else []
            yield f"{'removed' if done else 'in use, kept:'} {_text(item)}"
    if not alone:
        yield "another process uses the store: finished entries and locks were left alone"
    yield f"{_total(removed)} removed"


def _remove(root: Path, item: Garbage, alone: bool) -> bool:
    """Remove an item unless somebody may need it; returns whether it is gone."""
    if item.path.suffix != PARTIAL:
        return alone and _delete(root, item.path)
    lock = item.path.with_suffix(LOCK)
    with try_locked(lock) as free:
        gone = free and _delete(root, item.path)
        if alone:
            lock.unlink()
    return gone


def _delete(root: Path, path: Path) -> bool:
    """Remove a path; False if it is not there any more, as when a build has just been finished."""
    if not path.exists():
        return False
    if path.is_dir():
        # Renamed first: nobody sees half an entry, even if this process is killed.
        trash = Path(tempfile.mkdtemp(prefix=TRASH, dir=root))
        os.rename(path, trash / path.name)
        shutil.rmtree(trash)
    else:
        path.unlink()
    return True


def _age(path: Path) -> float:
    """Seconds since a path was changed; none for one that a build has just renamed."""
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _size(path: Path) -> int:
    """Bytes below a path, whose files may come and go."""
    total = 0
    for file in path.rglob("*") if path.is_dir() else [path]:
        with suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _text(item: Garbage) -> str:
    return f"{item.path.name}, {size_text(item.size)}: {item.reason}"


def _total(items: list[Garbage]) -> str:
    return f"{len(items)} items, {sum(item.size for item in items)} bytes"
