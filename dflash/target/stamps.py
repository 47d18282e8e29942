"""Content hashes of files on disk, remembered so that gigabytes are not read at every start.

A stamp is ``(size, mtime_ns, sha256)``. A file whose size and time of change still agree with its
stamp is taken as unchanged; anything else is read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dflash.target.files import replacing


@dataclass(frozen=True)
class Stamp:
    """What a file was when it was last read in full."""

    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Read ``path`` in full."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        state = path.stat()
        return cls(state.st_size, state.st_mtime_ns, digest)

    def untouched(self, path: Path) -> bool:
        """Same size and time of change; no byte is read."""
        state = path.stat()
        return (state.st_size, state.st_mtime_ns) == (self.size, self.mtime_ns)

    def matches(self, path: Path) -> bool:
        """Whether ``path`` still holds these bytes."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        return self.untouched(path) or Stamp.of(path).sha256 == self.sha256


def digest_of(stamps: Mapping[str, Stamp]) -> str:
    """One hash for a set of named files: their names and bytes, not their dates."""
    lines = "".join(f"{name} {stamps[name].sha256}\n" for name in sorted(stamps))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_stamps(path: Path, stamps: Mapping[str, Stamp]) -> None:
    """Write ``stamps`` as JSON, atomically."""
    with replacing(path) as place:
        plain = {key: asdict(stamp) for key, stamp in stamps.items()}
        place.write_text(json.dumps(plain, indent=1))


def read_stamps(path: Path) -> dict[str, Stamp] | None:
    """Stamps written before, or ``None`` where there are none that can be read."""
    try:
        return {key: Stamp(**value) for key, value in json.loads(path.read_text()).items()}
    except (FileNotFoundError, json.JSONDecodeError, TypeError, AttributeError):
        return None


def stamp_directory(directory: Path, patterns: tuple[str, ...], memory: Path) -> dict[str, Stamp]:
    """Stamps of the files of ``directory`` that match ``patterns``; ``memory`` keeps them."""
    known = read_stamps(memory) or {}
    paths = sorted(path for pattern in patterns for path in directory.glob(pattern))
    stamps = {
        path.name: known[path.name]
        if path.name in known and known[path.name].untouched(path)
        else Stamp.of(path)
        for path in paths
    }
    if stamps != known:
        write_stamps(memory, stamps)
    return stamps
