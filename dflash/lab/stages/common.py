"""What every stage needs: the store, targets loaded at most once, and a place to report to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from dflash.lab.code_version import module_hashes, version_of
from dflash.lab.files import write_text
from dflash.lab.store import Key, Store
from dflash.target import Target, TargetConfig, load_target

T = TypeVar("T")


@dataclass
class Lab:
    """One process's access to the store.

    Attributes:
        say: takes one line of progress in words.
        progress: show progress bars.
    """

    store: Store
    say: Callable[[str], None]
    progress: bool = True
    _loaded: dict[TargetConfig, Target] = field(default_factory=dict)

    def target(self, config: TargetConfig) -> Target:
        """The target, kept for the next stage; another one replaces it, as two may not fit."""
        if config not in self._loaded:
            self._loaded.clear()
            self._loaded[config] = load_target(config, self.store.root / "targets")
        return self._loaded[config]

    def unload(self) -> None:
        """Give the target's memory back."""
        self._loaded.clear()
        torch.cuda.empty_cache()

    def bar(self, items: Sequence[T], what: str) -> Iterable[T]:
        """``items`` behind a progress bar, if bars are wanted."""
        return tqdm(items, desc=what, disable=not self.progress, leave=False)


@dataclass(frozen=True)
class Code:
    """The code of a stage: where it enters and how far its imports are followed.

    Attributes:
        watchers: modules that only look on, so that editing one makes nothing again.
    """

    roots: tuple[str, ...]
    packages: tuple[str, ...]
    watchers: tuple[str, ...] = ()

    @cached_property
    def modules(self) -> dict[str, str]:
        """Read once: an edit during a run must not relabel what the loaded code computes."""
        return module_hashes(self.roots, self.packages, watchers=self.watchers)

    @property
    def version(self) -> str:
        return version_of(self.modules)

    def key(self, stage: str, config: Mapping[str, Any], inputs: Mapping[str, str]) -> Key:
        """The key of what this code makes from ``config`` and the entries ``inputs``."""
        return Key(stage, config, inputs, self.version, self.modules)


def write_json(path: Path, data: Any) -> None:
    """Write plain data atomically."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True))


def read_json(path: Path) -> Any:
    """Read what ``write_json`` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))
