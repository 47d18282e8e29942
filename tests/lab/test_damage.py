"""Every file of every stage, truncated, changed and deleted: one clear line each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash.data.features import FeatureStore
from dflash.data.rollouts import read_rollouts
from dflash.lab import store as module
from dflash.lab.experiment import load_experiment
from dflash.lab.results import read_table
from dflash.lab.run import run_experiment
from dflash.lab.stages.train import Trained
from dflash.lab.store import MANIFEST, StoreError, check_entry, stage_of
from dflash.model.errors import UserError


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    change(path, path.stat().st_size // 2)


def change(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(bytes(content))


@pytest.fixture
def entries(lab, small, small_overrides, tmp_path) -> dict[str, Path]:
    """One entry of every stage."""
    overrides = [*small_overrides, "seeds=[0]"]
    assert run_experiment(lab, load_experiment(small, overrides), tmp_path / "results").failed == []
    return {stage_of(entry.name): entry for entry in lab.store.entries()}


def test_any_damage_is_named_in_one_line(entries):
    assert len(entries) == 8
    for entry in entries.values():
        check_entry(entry, deep=True)
        for path in sorted(path for path in entry.rglob("*") if path.is_file()):
            content = path.read_bytes()
            for damage in (truncate, flip, Path.unlink) if content else (Path.unlink,):
                damage(path)
                with pytest.raises(StoreError) as caught:
                    check_entry(entry)
                assert path.name in str(caught.value)
                assert str(entry) in str(caught.value)
                assert "\n" not in str(caught.value)
                path.write_bytes(content)
        check_entry(entry, deep=True)


def test_a_changed_byte_of_a_large_file_is_found_by_reading_it(entries, monkeypatch):
    monkeypatch.setattr(module, "HASHED_BELOW", 0)
    for entry in entries.values():
        for path in sorted(path for path in entry.rglob("*") if path.is_file()):
            if path.name == MANIFEST:
                continue
            content = path.read_bytes()
            if not content:
                continue
            flip(path)
            check_entry(entry)
            with pytest.raises(StoreError, match=f"content of .*{path.name} has changed"):
                check_entry(entry, deep=True)
            path.write_bytes(content)


def test_what_cannot_be_read_is_a_line_and_no_traceback(entries, lab, small_overrides, small):
    """As with a large file, of which opening checks the size only."""
    target = lab.target(load_experiment(small, small_overrides).config.target)
    readers = {
        entries["rollouts"] / "rollouts.parquet": read_rollouts,
        entries["replay"] / "steps.parquet": read_table,
        next((entries["train"] / "drafter").glob("*.safetensors")): lambda path: Trained.of_entry(
            entries["train"]
        ).load(target),
    }
    for path, read in readers.items():
        content = path.read_bytes()
        said = [tried(read, path, position) for position in places(content)]
        assert sum(map(bool, said)) > 3, path
        assert all("\n" not in text for text in said)
    features = entries["features"]
    truncate(features / "features.bin")
    with pytest.raises(UserError, match=r"features\.bin"):
        FeatureStore(features)


def places(content: bytes) -> list[int]:
    """The beginning, the end, and steps between."""
    return [*range(0, 40, 3), *range(40, len(content), len(content) // 40), -5, -1]


def tried(read: Callable[[Path], object], path: Path, position: int) -> str:
    """What the user is told when a byte has changed; empty when the reader does not notice."""
    change(path, position)
    try:
        read(path)
    except UserError as error:
        return str(error)
    finally:
        change(path, position)
    return ""
