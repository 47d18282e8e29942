"""Files that are either the old version or the new one, whenever the process dies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary neighbour of ``path`` (same suffix) that takes its place on success."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(path.suffix, f".{path.stem}.", path.parent)
    os.close(handle)
    try:
        yield Path(name)
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(name, 0o644)  # mkstemp is private to the user; results are for sharing
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
