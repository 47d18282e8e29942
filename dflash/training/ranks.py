"""This process among those that train one drafter together, as torchrun tells it."""

from __future__ import annotations

import os


def local_rank() -> int:
    """The index of this process's device; 0 for a process that trains alone."""
    return int(os.environ.get("LOCAL_RANK", 0))


def is_first_rank() -> bool:
    """Does this process write what the run leaves?"""
    return os.environ.get("RANK", "0") == "0"
