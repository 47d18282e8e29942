"""Advisory locks between processes and hosts that share one store.

They are ``flock`` locks: the kernel drops them when a process dies, however it dies. On NFS Linux
turns them into byte-range locks of the whole file, seen by every client, which want a file that is
open for reading and writing. A lock file that is removed takes its lock along, so whoever
got one makes sure that the path still leads to it; the store-wide file is never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

IN_USE = ".in-use"
_USED: dict[Path, IO[str]] = {}  # stores that this process works in, until it ends


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock; while another process has it, say that we wait for it."""
    handle = claim(path, wait=False)
    if handle is None:
        print(f"waiting for another process that builds {what}", file=sys.stderr, flush=True)
        handle = claim(path, wait=True)
    assert handle is not None
    with handle:
        yield


@contextlib.contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock if nobody else does; yields whether it is held."""
    with path.open("a+") as handle:
        yield _lock(handle, fcntl.LOCK_EX) and _leads_to(path, handle)


def claim(path: Path, wait: bool) -> IO[str] | None:
    """An exclusive lock for as long as the returned file is open; None if it is taken.

    Args:
        wait: until it is free.
    """
    while True:
        handle = path.open("a+")
        if not _lock(handle, fcntl.LOCK_EX):
            if not wait:
                handle.close()
                return None
            fcntl.flock(handle, fcntl.LOCK_EX)
        if _leads_to(path, handle):
            return handle
        handle.close()  # removed while we waited: the lock is worth nothing


def use_store(root: Path) -> None:
    """Count this process among the store's users until it ends, see ``only_user``.

    A store that cannot be written by this user is read without a word: nobody can be told.
    """
    place = root.resolve()
    if place in _USED or not os.access(place, os.W_OK):
        return
    handle = (place / IN_USE).open("a+")
    if not _lock(handle, fcntl.LOCK_SH):
        print(f"waiting for another process that cleans {root}", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_SH)
    _USED[place] = handle


@contextlib.contextmanager
def only_user(root: Path) -> Iterator[bool]:
    """Yields whether no other process uses the store; if so, none can begin to meanwhile."""
    use_store(root)
    handle = _USED[root.resolve()]
    alone = _lock(handle, fcntl.LOCK_EX)
    try:
        yield alone
    finally:  # a failed conversion may have dropped the shared lock, too
        fcntl.flock(handle, fcntl.LOCK_SH)


def _lock(handle: IO[str], kind: int) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leads_to(path: Path, handle: IO[str]) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle.fileno()))
    except FileNotFoundError:
        return False
