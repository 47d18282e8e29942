"""Small files written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary neighbour of ``path``, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(name))
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.chmod(name, 0o644)  # mkstemp is private to the user; results are for sharing
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write text atomically, with a final newline."""
    body = text if text.endswith("\n") else f"{text}\n"
    write_with(path, lambda place: place.write_text(body, encoding="utf-8"))


def is_disk_full(error: BaseException | None) -> bool:
    """Does an exception, or one that caused it, mean that the disk or the quota is full?

    Libraries in native code raise their own types with the system's text.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        if os.strerror(errno.ENOSPC) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
