from __future__ import annotations

from pathlib import Path

import pytest

from dflash.lab.code_version import module_file, module_hashes, version_of
from dflash.lab.stages.pace import CODE as PACE
from dflash.lab.stages.train import CODE as TRAIN

MAIN = '''"""Doc."""
from dflash.b.tool import f
import dflash.c.other

def g():
    """D."""
    return f()
'''
ROOTS, PACKAGES = ("dflash.a.main",), ("dflash.a", "dflash.b")


@pytest.fixture
def package(tmp_path):
    root = tmp_path / "dflash"
    for folder in ("a", "b", "c"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").write_text("")
    (root / "__init__.py").write_text("")
    (root / "a" / "main.py").write_text(MAIN)
    (root / "a" / "unused.py").write_text("x = 1\n")
    (root / "b" / "tool.py").write_text("def f():\n    return 1\n")
    (root / "c" / "other.py").write_text("y = 1\n")
    return root


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("a/main.py", '"""Doc."""', '"""Another."""'),
        ("a/main.py", '    """D."""\n', ""),
        ("a/main.py", "    return f()", "    # why\n    return  f()"),
        ("a/unused.py", "1", "2"),
        ("c/other.py", "1", "2"),
        ("__init__.py", "", "z = 1"),
    ],
)
def test_what_does_not_change_the_version(package, file, old, new):
    assert not changes(package, file, old, new)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("a/main.py", "return f()", "return f() + 1"),
        ("b/tool.py", "return 1", "return 2"),
        ("a/main.py", "def g", "def h"),
    ],
)
def test_what_changes_the_version(package, file, old, new):
    assert changes(package, file, old, new)


def version(package) -> str:
    return version_of(module_hashes(ROOTS, PACKAGES, package))


def changes(package, file, old, new) -> bool:
    before = version(package)
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new, 1))
    return version(package) != before


def test_a_name_taken_from_a_package_brings_its_init(package):
    (package / "a" / "main.py").write_text("from dflash.b import f\n")
    (package / "b" / "__init__.py").write_text("from dflash.b.tool import f\n")
    assert changes(package, "b/tool.py", "return 1", "return 2")


def test_an_unknown_root_is_an_error(package):
    with pytest.raises(ModuleNotFoundError, match=r"dflash\.a\.gone"):
        module_hashes(("dflash.a.gone",), PACKAGES, package)


def test_the_module_that_changed_can_be_named(package):
    before = module_hashes(ROOTS, PACKAGES, package)
    (package / "b" / "tool.py").write_text("def f():\n    return 2\n")
    after = module_hashes(ROOTS, PACKAGES, package)
    assert {name for name in after if after[name] != before[name]} == {"dflash.b.tool"}
    assert module_file("dflash.b.tool", package) == Path("dflash/b/tool.py")
    assert module_file("dflash.b.gone", package) is None


def test_who_only_looks_on_is_left_out(package):
    hashes = module_hashes(ROOTS, PACKAGES, package, watchers=("dflash.b.tool",))
    assert hashes.keys() == {"dflash.a.main"}
    for code in (TRAIN, PACE):
        assert "dflash.training.trackers" not in code.modules
        assert {"dflash.training.run", "dflash.training.config"} <= code.modules.keys()
