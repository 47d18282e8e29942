"""Several processes build, clean and check one store at the same time, and some are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash.lab.store import Key, Store, check_entry
from dflash.lab.upkeep.catalogue import Catalogue
from dflash.lab.upkeep.check import damages
from dflash.lab.upkeep.gc import collect

REPO = Path(__file__).resolve().parents[2]
KEPT, LOOSE = range(6), range(6, 9)  # results need the first, nobody needs the others
WORKER = """
import os, random, sys, time
from pathlib import Path
from dflash.lab.store import Store, check_entry
from dflash.lab.upkeep.catalogue import Catalogue
from dflash.lab.upkeep.check import damages
from dflash.lab.upkeep.gc import collect
from tests.lab.test_concurrent_store import KEPT, LOOSE, key

verb, root, results, seed, seconds = sys.argv[1:]
store, rng = Store(Path(root)), random.Random(int(seed))
log = os.open(Path(results) / "seen.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def work(directory):
    (directory / "token").write_text(f"{os.getpid()} {rng.random()}")
    for index in range(4):
        (directory / f"part{index}").write_bytes(os.urandom(2000))
        time.sleep(0.002)

def build():
    number = rng.choice([*KEPT, *LOOSE])
    entry = store.build(key(number), work)
    check_entry(entry, deep=True)
    os.write(log, f"{number} {(entry / 'token').read_text()}\\n".encode())

def clean():
    for line in collect(Catalogue(store, Path(results)), [], 0, remove=True):
        pass
    time.sleep(0.02)

def check():
    found = list(damages(store, deep=True, repair=True))
    assert not found, found

end, parent = time.monotonic() + float(seconds), os.getppid()
while time.monotonic() < end and os.getppid() == parent:  # else the test is gone
    {"build": build, "clean": clean, "check": check}[verb]()
"""


def key(number: int) -> Key:
    return Key("entry", {"number": number}, {}, "c")


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "results" / "mine"
    (folder / "provenance").mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    names = {"run": [key(number).name for number in KEPT]}
    (folder / "provenance" / "entries.json").write_text(json.dumps(names))
    return tmp_path / "results"


def start(verb: str, root: Path, results: Path, seed: int, seconds: float) -> subprocess.Popen:
    words = [verb, str(root), str(results), str(seed), str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    pipes = {"stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", WORKER, *words], env=environment, **pipes)


def builders(root: Path, results: Path, rng: random.Random, rounds: int) -> None:
    """Rounds of builders that live shortly; one of each round is killed at any moment."""
    for number in range(rounds):
        seeds = [100 * number + index for index in range(3)]
        alive = [start("build", root, results, seed, rng.uniform(0.1, 0.5)) for seed in seeds]
        victim = start("build", root, results, 100 * number + 99, 60)
        time.sleep(rng.uniform(0.2, 1.0))
        os.kill(victim.pid, signal.SIGKILL)
        victim.communicate()
        for process in alive:
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors


def test_nothing_is_lost_and_nothing_is_built_twice(tmp_path, results):
    root = tmp_path / "store"
    root.mkdir()
    others = [start(verb, root, results, 0, 600) for verb in ("clean", "check")]
    builders(root, results, random.Random(0), 6)
    for process in others:
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()
    seen: dict[int, set[str]] = {}
    for line in (results / "seen.txt").read_text().splitlines():
        number, token = line.split(" ", 1)
        seen.setdefault(int(number), set()).add(token)
    assert {number: len(seen[number]) for number in KEPT} == dict.fromkeys(KEPT, 1)
    assert any(len(seen.get(number, ())) > 1 for number in LOOSE), "nothing was ever removed"
    assert list(damages(Store(root), deep=True)) == []
    list(collect(Catalogue(Store(root), results), [], 0, remove=True))
    left = {path.name for path in root.iterdir()} - {".in-use", "journal.jsonl"}
    assert left == {key(number).name for number in KEPT}
    for name in left:
        check_entry(root / name, deep=True)
