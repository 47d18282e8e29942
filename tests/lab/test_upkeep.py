"""Looking after a store of small entries: list, check, collect garbage, share it by locks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash.lab.code_version import version_of
from dflash.lab.locks import locked, only_user, use_store
from dflash.lab.store import MANIFEST, Key, Store, StoreError, check_entry
from dflash.lab.upkeep.catalogue import Catalogue, list_lines
from dflash.lab.upkeep.check import damages
from dflash.lab.upkeep.gc import collect, garbage
from dflash.lab.upkeep.journal import log_lines
from dflash.lab.upkeep.words import age_text, parse_age, size_text
from dflash.model.errors import UserError

MODULES = {"dflash.x": "1"}
REPO = Path(__file__).resolve().parents[2]


def key(stage: str, number: int = 0, **inputs: str) -> Key:
    return Key(stage, {"number": number}, inputs, version_of(MODULES), MODULES)


def fill(directory: Path) -> None:
    (directory / "small.txt").write_text("small")
    (directory / "big.bin").write_bytes(b"x" * (2 << 20))


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def catalogue(store, tmp_path):
    """A new look at the store at every call."""

    def look() -> Catalogue:
        return Catalogue(store, tmp_path / "results")

    return look


@pytest.fixture
def uses(tmp_path):
    """Results of an experiment that was made from some entries."""

    def write(experiment: str, *entries: Path) -> None:
        folder = tmp_path / "results" / experiment
        (folder / "provenance").mkdir(parents=True)
        (folder / "config.yaml").write_text("")
        names = {"control-s0": [entry.name for entry in entries]}
        (folder / "provenance" / "entries.json").write_text(json.dumps(names))

    return write


@pytest.fixture
def busy(store):
    """Another process that uses the store, and holds the lock of one entry."""
    code = (
        "import sys; from pathlib import Path; from dflash.lab.locks import *\n"
        "root = Path(sys.argv[1]); use_store(root)\n"
        "with locked(root / sys.argv[2], 'x'):\n    print('held', flush=True); sys.stdin.read()"
    )
    processes = []

    def start(lock: str) -> None:
        command = [sys.executable, "-c", code, str(store.root), lock]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=REPO, text=True, **pipes)
        processes.append(process)
        assert process.stdout.readline() == "held\n"

    yield start
    for process in processes:
        process.communicate()


def test_list_says_what_there_is_and_who_uses_it(store, catalogue, uses):
    first = store.build(key("first"), fill)
    second = store.build(key("second", first=first.name), fill)
    third = store.build(key("third", second=second.name), fill)
    uses("mine", third)
    (store.root / f"{key('first', 1).name}.partial").mkdir()
    lines = {line.split()[0]: line for line in list_lines(catalogue(), None)}
    assert re.search(r'2\.0 MiB +\d+s +\{"number": 0\} +second-\w+$', lines[first.name])
    assert lines[second.name].endswith(third.name)
    assert lines[third.name].endswith(" mine")
    assert lines[f"{key('first', 1).name}.partial"].endswith("unfinished")
    assert lines["3"] == "3 entries, 6.0 MiB"
    (second / MANIFEST).unlink()
    only = list(list_lines(catalogue(), "second"))
    assert only[1:] == [f"{second.name}  damaged, see `dflash store check`", "0 entries, 0 B"]


@pytest.mark.parametrize(
    ("damage", "found_at_once"),
    [
        (lambda entry: (entry / "big.bin").write_bytes(b"x" * 100), True),
        (lambda entry: (entry / "small.txt").unlink(), True),
        (lambda entry: (entry / "small.txt").write_text("smalL"), True),
        (lambda entry: (entry / MANIFEST).unlink(), True),
        (lambda entry: (entry / MANIFEST).write_text("[]"), True),
        (lambda entry: (entry / MANIFEST).write_text('{"files": {}}'), True),
        (lambda entry: replace(entry / MANIFEST, '"number": 0', '"number": 1'), True),
        (lambda entry: (entry / "big.bin").write_bytes(b"x" * ((2 << 20) - 1) + b"y"), False),
    ],
)
def test_check_finds_damage_and_repair_sets_it_aside(store, damage, found_at_once):
    whole = store.build(key("whole"), fill)
    entry = store.build(key("stage"), fill)
    assert list(damages(store, deep=True)) == []
    damage(entry)
    assert [item.name for item in damages(store)] == ([entry.name] if found_at_once else [])
    (found,) = damages(store, deep=True)
    assert found.name == entry.name
    assert found.moved is None
    assert "\n" not in found.reason
    for _ in range(2):
        (moved,) = damages(store, deep=True, repair=True)
        assert moved.moved.is_dir()
        assert not store.has(key("stage"))
        store.build(key("stage"), fill)
        damage(entry)
    assert sorted(path.name for path in (store.root / "damaged").iterdir()) == [
        entry.name,
        f"{entry.name}.1",
    ]
    check_entry(whole, deep=True)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_gc_keeps_what_results_need_and_shows_before_it_removes(store, catalogue, uses):
    first = store.build(key("first"), fill)
    needed = store.build(key("second", first=first.name), fill)
    unused = store.build(key("second", 1, first=first.name), fill)
    wanted = store.root / f"{key('second', 2).name}.partial"
    left = store.root / f"{key('second', 3).name}.partial"
    for path in (wanted, left, store.root / ".trash-x"):
        path.mkdir()
        (path / "part").write_text("part")
    uses("mine", needed, wanted.with_suffix(""))
    shown = list(collect(catalogue(), [], 0, remove=False))
    assert unused.is_dir()
    assert [line.split()[2].rstrip(",") for line in shown[:-1]] == sorted(
        [
            ".trash-x",
            unused.name,
            left.name,
            *(f"{path.name}.lock" for path in (first, needed, unused)),
        ]
    )
    done = list(collect(catalogue(), [], 0, remove=True))
    assert [line.replace("removed", "would remove", 1) for line in done[:-1]] == shown[:-1]
    assert shown[-1].split(" could")[0] == done[-1].split(" removed")[0]
    assert {path.name for path in store.root.iterdir()} == {
        first.name,
        needed.name,
        wanted.name,
        ".in-use",
        "journal.jsonl",
    }
    assert list(collect(catalogue(), [], 0, remove=True)) == ["0 items, 0 bytes removed"]


def test_gc_keeps_what_is_young_or_asked_for_with_its_inputs(store, catalogue):
    first = store.build(key("first"), fill)
    second = store.build(key("second", first=first.name), fill)
    for path in (first, store.root / f"{first.name}.lock"):
        for place in (path / MANIFEST, path) if path.is_dir() else (path,):
            os.utime(place, (time.time() - 7200,) * 2)
    assert [item.path.name for item in garbage(catalogue(), [], 3600)] == [f"{first.name}.lock"]
    assert entries(garbage(catalogue(), [second.name], 0)) == []
    assert entries(garbage(catalogue(), [first.name], 0)) == [second.name]


def entries(items) -> list[str]:
    return [item.path.name for item in items if (item.path / MANIFEST).is_file()]


def test_gc_leaves_entries_alone_while_another_process_uses_the_store(store, catalogue, busy):
    unused = store.build(key("first"), fill)
    held, free = (store.root / f"{key('second', n).name}.partial" for n in (1, 2))
    held.mkdir()
    free.mkdir()
    busy(held.with_suffix(".lock").name)
    lines = list(collect(catalogue(), [], 0, remove=True))
    assert unused.is_dir()
    assert held.is_dir()
    assert not free.exists()
    assert any(line.startswith("another process uses the store") for line in lines)
    assert lines[-1] == "1 items, 0 bytes removed"


def test_a_builder_waits_for_a_cleaner(store):
    store.build(key("first"), fill)
    with only_user(store.root) as alone:
        assert alone
        code = "import sys; from pathlib import Path; from dflash.lab.locks import use_store\n"
        code += "use_store(Path(sys.argv[1])); print('in', flush=True)"
        command = [sys.executable, "-c", code, str(store.root)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=REPO, text=True, **pipes)
        assert "waiting for another process that cleans" in process.stderr.readline()
        assert process.poll() is None
    assert process.communicate()[0] == "in\n"


def test_a_lock_file_that_was_removed_is_no_lock(tmp_path):
    path = tmp_path / "x.lock"
    code = "import sys; from pathlib import Path; from dflash.lab.locks import locked\n"
    code += "with locked(Path(sys.argv[1]), 'x'):\n    print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with locked(path, "x"):
        waiter = subprocess.Popen(command, cwd=REPO, text=True, **pipes)
        assert "waiting" in waiter.stderr.readline()
        path.unlink()
    assert waiter.stdout.readline() == "held\n"
    assert path.exists(), "the waiter must have locked a file that others can see"
    waiter.communicate()


def test_a_store_that_cannot_be_written_is_read(store, monkeypatch):
    store.root.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    use_store(store.root)
    assert list(store.root.iterdir()) == []
    with pytest.raises(StoreError, match="cannot be written"):
        list(collect(Catalogue(store, store.root), [], 0, remove=True))


def test_the_journal_is_shown_line_by_line(tmp_path):
    assert next(log_lines(tmp_path)).endswith("nothing was built yet")
    told = {"time": 1.7e9, "host": "node1", "pid": 7, "name": "train-1", "seconds": 1.25}
    (tmp_path / "journal.jsonl").write_text(json.dumps(told) + '\n{"time": 1')
    first, second = log_lines(tmp_path)
    assert re.fullmatch(r"2023-11-1\d \d\d:13:20  train-1  1\.2 s  node1:7", first)
    assert second == 'unreadable: {"time": 1'
    assert Store(tmp_path).journal() == [told], "a line that was cut short stops nobody"


def test_sizes_and_ages():
    assert [size_text(n) for n in (0, 1023, 1024, 1536 << 10, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "3.0 TiB",
    ]
    assert [age_text(n) for n in (0, 59, 60, 7200, 86400 * 30)] == ["0s", "59s", "1m", "2h", "30d"]
    assert [parse_age(text) for text in ("30d", "2h", "5m", "0s")] == [2592000, 7200, 300, 0]
    with pytest.raises(UserError, match=r"--older-than='soon'"):
        parse_age("soon")
