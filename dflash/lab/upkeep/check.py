"""Every entry held against its manifest; what is damaged can be set aside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash.lab.locks import locked
from dflash.lab.store import LOCK, Store, StoreError, check_entry

DAMAGED = "damaged"


@dataclass(frozen=True)
class Damage:
    """One entry and what is wrong with it, in one line; where it was moved to, if it was."""

    name: str
    reason: str
    moved: Path | None = None


def damages(store: Store, deep: bool = False, repair: bool = False) -> Iterator[Damage]:
    """Check every entry; yields the damaged ones.

    Args:
        deep: also compare the content of large files, which reads the whole store.
        repair: move a damaged entry to ``damaged/``, so that the next run builds it anew.
    """
    for entry in store.directories():
        reason = _reason(entry, deep)
        if reason is None:
            continue
        if not repair:
            yield Damage(entry.name, reason)
            continue
        with locked(store.root / f"{entry.name}{LOCK}", entry.name):
            reason = _reason(entry, deep)  # another process may have repaired it meanwhile
            if reason is not None:
                yield Damage(entry.name, reason, _set_aside(store, entry))


def _reason(entry: Path, deep: bool) -> str | None:
    try:
        check_entry(entry, deep)
    except StoreError as error:
        # An entry that was removed since the directory was listed is not damaged.
        return str(error) if entry.is_dir() else None
    return None


def _set_aside(store: Store, entry: Path) -> Path:
    place = store.root / DAMAGED
    place.mkdir(exist_ok=True)
    number = len(list(place.glob(f"{entry.name}*")))
    target = place / (f"{entry.name}.{number}" if number else entry.name)
    os.rename(entry, target)
    return target
