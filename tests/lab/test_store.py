from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dflash.lab.files import write_text
from dflash.lab.store import Key, Store, StoreError, read_manifest
from dflash.model.errors import UserError

KEY = Key("stage", {"a": 1}, {"input": "other-1"}, "code1")
REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


def fill(directory: Path) -> None:
    (directory / "sub").mkdir(exist_ok=True)
    (directory / "small.txt").write_text("small")
    (directory / "sub" / "big.bin").write_bytes(b"x" * (2 << 20))


def test_finished_work_is_not_redone(store):
    first = store.build(KEY, fill)
    assert store.has(KEY)
    assert store.build(KEY, lambda _: pytest.fail("built twice")) == first
    assert read_manifest(first)["config"] == {"a": 1}
    assert store.entries("stage") == [first]


@pytest.mark.parametrize(
    "other",
    [
        Key("other", KEY.config, KEY.inputs, KEY.code),
        Key("stage", {"a": 2}, KEY.inputs, KEY.code),
        Key("stage", KEY.config, {"input": "other-2"}, KEY.code),
        Key("stage", KEY.config, KEY.inputs, "code2"),
    ],
)
def test_everything_in_the_key_counts(store, other):
    store.build(KEY, fill)
    assert not store.has(other)


def test_interrupted_work_is_invisible_and_resumed(store):
    def interrupted(directory: Path) -> None:
        (directory / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build(KEY, interrupted)
    assert not store.has(KEY)
    assert store.entries("stage") == []

    def resumed(directory: Path) -> None:
        assert (directory / "part").read_text() == "half"
        (directory / "part").write_text("whole")

    assert (store.build(KEY, resumed) / "part").read_text() == "whole"


def test_what_killed_writes_left_is_not_part_of_an_entry(store):
    def work(directory: Path) -> None:
        fill(directory)
        (directory / "sub" / ".big.ab12.bin").write_bytes(b"half")
        (directory / ".drafter").mkdir()
        (directory / ".drafter" / "weights").write_bytes(b"half")

    entry = store.build(KEY, work)
    assert sorted(read_manifest(entry)["files"]) == ["small.txt", "sub/big.bin"]
    names = {path.relative_to(entry).as_posix() for path in entry.rglob("*")}
    assert names == {"manifest.json", "small.txt", "sub", "sub/big.bin"}


CHILD = """
import sys, time
from pathlib import Path
from dflash.lab.store import Key, Store

def work(directory):
    done = sorted(path.name for path in directory.glob("part*"))
    for index in range(len(done), 4):
        (directory / f"part{index}").write_text(str(index))
        print(index, flush=True)
        if sys.argv[2] == "hang" and index == 1:
            time.sleep(60)

print(Store(Path(sys.argv[1])).build(Key("stage", {}, {}, "c"), work), flush=True)
"""


def child(store: Store, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(store.root), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO)


def test_sigkill_loses_nothing_and_frees_the_lock(store):
    process = child(store, "hang")
    assert [process.stdout.readline().strip() for _ in range(2)] == ["0", "1"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert store.entries("stage") == []
    again = child(store, "go")
    output = again.communicate()[0].split("\n")
    assert again.returncode == 0
    assert output[:2] == ["2", "3"], "the second process must continue, not start over"
    names = sorted(path.name for path in Path(output[2]).iterdir())
    assert names == ["manifest.json", "part0", "part1", "part2", "part3"]


def test_two_builders_of_one_entry_take_turns(store, capsys):
    inside, go_on = threading.Event(), threading.Event()
    builds: list[str] = []

    def slow(directory: Path) -> None:
        builds.append("first")
        inside.set()
        go_on.wait(10)
        fill(directory)

    first = threading.Thread(target=store.build, args=(KEY, slow))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=store.build, args=(KEY, lambda _: builds.append("second")))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    first.join(10)
    second.join(10)
    assert builds == ["first"]
    assert "waiting for another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda entry: (entry / "sub" / "big.bin").write_bytes(b"x"),
            "big.bin has 1 bytes instead",
        ),
        (lambda entry: (entry / "small.txt").write_text("smalL"), "content of small.txt"),
        (lambda entry: (entry / "small.txt").unlink(), "small.txt is missing"),
        (lambda entry: (entry / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda entry: (entry / "manifest.json").write_text("{"), "manifest.json is missing or un"),
    ],
)
def test_damage_is_named_with_its_remedy(store, damage, message):
    entry = store.build(KEY, fill)
    damage(entry)
    with pytest.raises(UserError) as caught:
        store.build(KEY, fill)
    text = str(caught.value)
    assert message in text
    assert str(entry) in text
    assert "delete that directory" in text
    assert "\n" not in text
    shutil.rmtree(entry)
    store.build(KEY, fill)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail] write failed: No space left on device"),
    ],
)
def test_a_full_disk_is_one_line_and_keeps_what_was_written(store, error):
    def full(directory: Path) -> None:
        (directory / "part").write_text("kept")
        raise error

    with pytest.raises(StoreError, match=r"no space left for .* MiB free"):
        store.build(KEY, full)
    assert (store.build(KEY, fill) / "part").read_text() == "kept"


def test_other_errors_pass_unchanged(store):
    def broken(directory: Path) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.build(KEY, broken)


def test_atomic_write_leaves_the_old_file_on_failure(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "old")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("x")))
    with pytest.raises(OSError, match="x"):
        write_text(path, "new")
    assert path.read_bytes() == b"old\n"
    assert list(path.parent.iterdir()) == [path]
