"""Text files written whole or not at all, and disks that are full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dflash.target.files import replacing

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, with a final newline."""
    body = text if text.endswith("\n") else f"{text}\n"
    with replacing(path) as place:
        place.write_text(body, encoding="utf-8")


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
