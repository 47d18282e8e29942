"""A folder that says what must be in it: ``MANIFEST`` has the SHA-256 of every other file.

Its lines are those of ``sha256sum``, so ``sha256sum -c MANIFEST`` checks a folder without the lab.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dflash.lab.files import write_text
from dflash.lab.store import file_hash
from dflash.model.errors import UserError

MANIFEST = "MANIFEST"


def seal(directory: Path) -> None:
    """Write the manifest of everything in a folder."""
    lines = [f"{file_hash(directory / name)}  {name}" for name in _files(directory)]
    write_text(directory / MANIFEST, "\n".join(lines))


def listed(directory: Path) -> dict[str, str]:
    """Name -> hash, as the manifest says.

    Raises:
        UserError: no manifest, or one that is not ours.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise UserError.of("DIR", str(directory), f"an exported folder, with {MANIFEST}")
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        digest, separator, name = line.partition("  ")
        if len(digest) != 64 or not separator:
            raise UserError(f"{path} has a line that is not HASH  NAME: {line!r}")
        found[name] = digest
    return found


def faults(directory: Path) -> Iterator[str]:
    """What is missing, changed or not listed, a line each; nothing for a sound folder.

    Raises:
        UserError: see ``listed``.
    """
    expected, there = listed(directory), set(_files(directory))
    for name, digest in expected.items():
        if name not in there:
            yield f"{name} is missing"
        elif file_hash(directory / name) != digest:
            yield f"{name} has changed"
    for name in sorted(there - expected.keys()):
        yield f"{name} is not listed"


def _files(directory: Path) -> list[str]:
    """Every file but the manifest, sorted, with / in its name."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    names = sorted(path.relative_to(directory).as_posix() for path in paths)
    return [name for name in names if name != MANIFEST]
