"""Dependencies point downward only (design §3), read off the syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
ALLOWED = {
    "lazy": set(),
    "model": {"lazy"},
    "metrics": {"model"},
    "target": {"model", "lazy"},
    "data": {"model", "target", "metrics"},
    "decoding": {"model", "target", "data", "metrics", "lazy"},
    "training": {"model", "target", "data", "metrics"},
    "lab": {"model", "target", "data", "metrics", "decoding", "training"},
    "cli": {"model", "lab"},
    "__main__": {"cli"},
    "__init__": {"decoding", "lazy"},
}
# DFlashDraftModel.spec_generate is a convenience over the decode loop.
UPWARD = {("dflash/model/drafter.py", "dflash.decoding")}


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, is it imported when the file is) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in inner) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append((str(node.module), id(node) not in inner))
            if node.module == "dflash":
                found += [(f"dflash.{a.name}", id(node) not in inner) for a in node.names]
    return found


def layer(name: str) -> str:
    """``model`` for ``dflash.model.masks`` and for ``dflash/model/masks.py``."""
    return name.split(".")[1]


def files() -> list[Path]:
    return sorted((REPO / "dflash").rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(REPO)))
def test_imports_point_downward(path):
    relative = path.relative_to(REPO)
    own = layer(".".join(relative.with_suffix("").parts))
    for module, top in imports(path):
        if module == "analysis" or module.startswith("analysis."):
            assert own == "cli", f"{relative} imports {module}"
        if not module.startswith("dflash."):
            continue
        other = layer(module)
        if other == own or other in ALLOWED[own]:
            continue
        lazy = (str(relative), module) in UPWARD and not top
        assert lazy, f"{relative} imports {module}: {own} may not depend on {other}"


def test_every_package_has_a_layer():
    names = {path.name for path in (REPO / "dflash").iterdir() if (path / "__init__.py").is_file()}
    assert names == {"cli", "model", "metrics", "target", "data", "decoding", "training", "lab"}


def test_the_rule_can_fail(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("from dflash import lab\n\ndef f():\n    import dflash.training.run\n")
    assert ("dflash.lab", True) in imports(path)
    assert ("dflash.training.run", False) in imports(path)


def test_heavy_optional_packages_stay_where_they_are_needed():
    homes = {"datasets": {"data"}, "lightning": {"training"}}
    homes |= {package: {"lab"} for package in ("hydra", "ray", "rich", "submitit")}
    for path in files():
        own = layer(".".join(path.relative_to(REPO).with_suffix("").parts))
        for module, _ in imports(path):
            package = module.split(".")[0]
            assert own in homes.get(package, {own}), f"{path} imports {package}"
            assert package not in ("matplotlib", "pandas"), f"{path} imports {package}"


def test_analysis_imports_only_types_and_loading():
    for path in sorted((REPO / "analysis").rglob("*.py")):
        for module, _ in imports(path):
            if module.startswith("dflash."):
                assert layer(module) in {"model", "metrics", "target"}, f"{path} imports {module}"
