"""Commit, diff and machine of a run: clean, changed and without a checkout."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import pytest

from analysis.load import load
from dflash.lab import provenance
from dflash.lab.experiment import load_experiment
from dflash.lab.provenance import SourceTree, machine_facts, package_versions, read_source_tree
from dflash.lab.run import run_experiment


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path) -> Path:
    tree = tmp_path / "tree"
    (tree / "dflash" / "lab").mkdir(parents=True)
    (tree / "results").mkdir()
    for name in ("dflash/one.py", "results/table.csv", "README.md"):
        (tree / name).write_text("x = 1\n")
    (tree / ".gitignore").write_text("ignored.py\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first")
    return tree


def test_a_clean_tree_is_its_commit(checkout):
    tree = read_source_tree(checkout)
    assert tree == SourceTree(git(checkout, "rev-parse", "HEAD").strip())
    assert tree.diff_hash == ""


def test_the_diff_makes_the_tree_again(checkout, tmp_path):
    changed = {"dflash/one.py": b"x = 2\n", "dflash/blob.bin": bytes(range(256))}
    (checkout / "dflash" / "blob.bin").write_bytes(b"\0old")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "second")
    new = {"dflash/lab/new.py": b"y = 1\n", "dflash/spät er.py": b"z = 1\n"}
    for name, content in (changed | new).items():
        (checkout / name).write_bytes(content)
    tree = read_source_tree(checkout)
    assert len(tree.diff_hash) == 16
    git(tmp_path, "clone", "-q", str(checkout), "copy")
    (tmp_path / "made.diff").write_bytes(tree.diff)
    git(tmp_path / "copy", "apply", str(tmp_path / "made.diff"))
    for name, content in (changed | new).items():
        assert (tmp_path / "copy" / name).read_bytes() == content


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("README.md", True),
        ("dflash/new.py", True),
        ("dflash/lab/new.py", True),
        ("dflash/ignored.py", False),
        ("dflash/notes.txt", False),
        ("scratch.py", False),
        ("results/table.csv", False),
    ],
)
def test_what_counts_as_a_change(checkout, name, counts):
    (checkout / name).write_text("changed = True\n")
    assert bool(read_source_tree(checkout).diff_hash) == counts


def test_staged_or_not_the_diff_is_the_same(checkout):
    (checkout / "dflash" / "one.py").write_text("x = 3\n")
    before = read_source_tree(checkout)
    git(checkout, "add", "dflash/one.py")
    assert read_source_tree(checkout) == before


def test_no_checkout_no_commit_and_no_git_are_unknown(checkout, tmp_path, monkeypatch):
    assert read_source_tree(tmp_path) == SourceTree("unknown")
    inner = checkout / "site-packages"  # a package installed below somebody's repository
    inner.mkdir()
    assert read_source_tree(inner) == SourceTree("unknown")
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert read_source_tree(empty) == SourceTree("unknown")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_source_tree(checkout) == SourceTree("unknown")


def test_machine_facts_name_no_machine():
    facts = machine_facts()
    assert facts["cores"] >= 1
    assert facts["memory_gib"] >= 1
    text = json.dumps(facts)
    assert platform.node() not in text
    assert str(Path.home()) not in text


def test_a_run_says_where_it_comes_from(lab, small, small_overrides, tmp_path, monkeypatch):
    tree = SourceTree("c0ffee", b"--- a\n+++ b\n")
    for module in ("provenance", "grid", "lineage", "stages.train"):
        monkeypatch.setattr(f"dflash.lab.{module}.source_tree", lambda: tree)
    experiment = load_experiment(small, [*small_overrides, "seeds=[0]"])
    directory = run_experiment(lab, experiment, tmp_path / "results").directory
    runs = load(small, tmp_path / "results").runs.set_index("run_id")
    assert set(runs["commit"]) == {"c0ffee"}
    assert set(runs["diff_hash"]) == {tree.diff_hash}
    assert (directory / "provenance" / f"{tree.diff_hash}.diff").read_bytes() == tree.diff
    assert set(runs["machine"].map(json.loads).map(lambda facts: facts["cores"])) == {
        machine_facts()["cores"]
    }
    assert runs["packages"].map(json.loads).map(lambda given: given == package_versions()).all()
    assert (runs["template_hash"] != "").all()
    assert runs["seed"].tolist() == [0, 0, 0, -1, -1]
    trained = runs[runs["kind"] == "drafter"]
    for entry in trained["entry"]:
        assert (lab.store.root / entry / "source.diff").read_bytes() == tree.diff
    assert (runs.loc[runs["kind"] == "floor", "entry"] == "").all()
    assert (directory / "experiment.yaml").read_text() == experiment.path.read_text()

    # what trained counts, not what wrote the tables
    monkeypatch.setattr("dflash.lab.grid.source_tree", lambda: SourceTree("other"))
    monkeypatch.setattr("dflash.lab.lineage.source_tree", lambda: SourceTree("other"))
    (directory / "provenance" / f"{tree.diff_hash}.diff").unlink()
    run_experiment(lab, experiment, tmp_path / "results")
    runs = load(small, tmp_path / "results").runs.set_index("run_id")
    assert runs["commit"].tolist() == ["c0ffee"] * 3 + ["other"] * 2
    assert (directory / "provenance" / f"{tree.diff_hash}.diff").read_bytes() == tree.diff


def test_the_state_is_read_once(monkeypatch):
    provenance.source_tree.cache_clear()
    first = provenance.source_tree()
    monkeypatch.setattr(provenance, "read_source_tree", lambda _: pytest.fail("read twice"))
    assert provenance.source_tree() is first
