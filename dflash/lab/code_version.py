"""The version of a stage's code: a hash that changes when what it computes may change.

Comments, formatting and docstrings do not count; every module of the declared packages that the
stage's roots import, directly or not, does.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def code_version(
    roots: tuple[str, ...], packages: tuple[str, ...], package_dir: Path = PACKAGE
) -> str:
    """Hash of the syntax trees reachable by imports.

    Args:
        roots: modules the stage enters by, e.g. ``("dflash.training.run",)``.
        packages: imports that leave these are not followed, so that a change above or beside a
            stage does not invalidate what it stored.
        package_dir: directory of the ``dflash`` package.
    """
    todo, seen = list(roots), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        inside = [found for found in _imports(name, package_dir) if _within(found, packages)]
        todo += inside
    digest = hashlib.sha256()
    for name in sorted(seen):
        digest.update(f"{name}\n{_tree_text(_source(name, package_dir))}\n".encode())
    return digest.hexdigest()[:16]


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _source(name: str, package_dir: Path) -> Path:
    path = _find(name, package_dir)
    if path is None:
        raise ModuleNotFoundError(f"{name} is not a module of {package_dir}")
    return path


def _find(name: str, package_dir: Path) -> Path | None:
    stem = package_dir.joinpath(*name.split(".")[1:])
    places = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((place for place in places if place.is_file()), None)


def _imports(name: str, package_dir: Path) -> set[str]:
    """Our own modules that a module imports anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(_parse(_source(name, package_dir))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {item for item in inner if _find(item, package_dir)}
            # A name that is no module itself lives in the module it is imported from.
            found |= modules if len(modules) == len(inner) else modules | {node.module}
    ours = f"{package_dir.name}."
    return {item for item in found if item.startswith(ours) and _find(item, package_dir)}


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@functools.cache
def _tree_text_of(path: Path, stamp: int) -> str:
    tree = _parse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _strip_docstring(node)
    return ast.dump(tree)


def _tree_text(path: Path) -> str:
    return _tree_text_of(path, path.stat().st_mtime_ns)


def _strip_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Pass()]
