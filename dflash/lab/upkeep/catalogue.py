"""What a store holds and who uses it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dflash.lab.folders import result_folders, used_entries
from dflash.lab.store import MANIFEST, PARTIAL, Store, StoreError, read_manifest, stage_of
from dflash.lab.upkeep.words import age_text, describe, size_text


@dataclass(frozen=True)
class Catalogue:
    """One look at a store and at the results that were made from it."""

    store: Store
    results: Path

    @cached_property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """Entry -> its manifest, oldest first; entries whose manifest cannot be read are absent."""
        found = {}
        for path in self.store.entries():
            try:
                found[path.name] = read_manifest(path)
            except StoreError:
                continue  # `unreadable` has it, and `store check` says why
        return found

    @cached_property
    def unreadable(self) -> list[str]:
        """Entries without a manifest that can be read."""
        names = [path.name for path in self.store.directories()]
        return [name for name in names if name not in self.manifests]

    @cached_property
    def experiments(self) -> dict[str, set[str]]:
        """Experiment -> entries that its results were, or will be, made from."""
        used = {}
        for folder in result_folders(self.results):
            runs = used_entries(folder)
            if runs is not None:
                used[folder.name] = {name for names in runs.values() for name in names}
        return used

    @cached_property
    def silent(self) -> list[Path]:
        """Results that do not say which entries they used: an older version wrote them."""
        folders = result_folders(self.results)
        return [folder for folder in folders if used_entries(folder) is None]

    def size(self, name: str) -> int:
        """Bytes of an entry's files, as its manifest has them."""
        return sum(int(file["size"]) for file in self.manifests[name]["files"].values())

    def age(self, name: str) -> float:
        """Seconds since an entry was finished."""
        return time.time() - (self.store.root / name / MANIFEST).stat().st_mtime

    def users(self, name: str) -> list[str]:
        """Experiments whose results need an entry; else the entries that were made from it."""
        direct = [experiment for experiment, names in self.experiments.items() if name in names]
        if direct:
            return direct
        made = self.manifests.items()
        return [other for other, manifest in made if name in manifest["inputs"].values()]

    def closure(self, names: Iterable[str]) -> set[str]:
        """``names`` with everything they were made from, directly or not."""
        todo, seen = list(names), set[str]()
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                manifest = self.manifests.get(name)
                todo += manifest["inputs"].values() if manifest else []
        return seen


def list_lines(catalogue: Catalogue, stage: str | None) -> Iterator[str]:
    """One line an entry: name, size, age, what it is, who uses it; unfinished ones after them."""
    rows = [
        (
            name,
            size_text(catalogue.size(name)),
            age_text(catalogue.age(name)),
            describe(manifest),
            ", ".join(catalogue.users(name)) or "nobody",
        )
        for name, manifest in catalogue.manifests.items()
        if stage in (None, manifest["stage"])
    ]
    yield from _aligned([("name", "size", "age", "what", "used by"), *rows])
    for name in catalogue.unreadable:
        if stage in (None, stage_of(name)):
            yield f"{name}  damaged, see `dflash store check`"
    for path in sorted(catalogue.store.root.glob(f"{stage or '*'}-*{PARTIAL}")):
        yield f"{path.name}  unfinished"
    total = sum(catalogue.size(name) for name, *_ in rows)
    yield f"{len(rows)} entries, {size_text(total)}"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()
