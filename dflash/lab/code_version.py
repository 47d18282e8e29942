"""The version of a stage's code: a hash that changes when what it computes may change.

Comments, formatting and docstrings do not count; every module of the declared packages that the
stage's roots import, directly or not, does.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def version_of(modules: Mapping[str, str]) -> str:
    """One hash for the modules of ``module_hashes``."""
    lines = "".join(f"{name} {modules[name]}\n" for name in sorted(modules))
    return _short_hash(lines)


def module_hashes(
    roots: tuple[str, ...],
    packages: tuple[str, ...],
    package_dir: Path = PACKAGE,
    watchers: tuple[str, ...] = (),
) -> dict[str, str]:
    """Module name -> hash of its syntax tree, for every module reachable by imports.

    Args:
        roots: modules the stage enters by, e.g. ``("dflash.training.run",)``.
        packages: imports that leave these are not followed, so that a change above or beside a
            stage does not invalidate what it stored.
        package_dir: directory of the ``dflash`` package.
        watchers: modules of these that change nothing that is computed.
    """
    todo, seen = list(roots), set[str]()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        found = _imports(name, package_dir) - {*watchers}
        todo += [module for module in found if _within(module, packages)]
    return {name: _short_hash(_read(name, package_dir).text) for name in sorted(seen)}


def module_file(name: str, package_dir: Path = PACKAGE) -> Path | None:
    """Where a module's source lies, relative to the checkout; None when there is no such module."""
    path = _find(name, package_dir)
    return None if path is None else path.relative_to(package_dir.parent)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Module:
    """A source file: its syntax tree without docstrings as text, and what it imports.

    ``imports`` holds (module, names taken from it); ``import a.b`` takes no names.
    """

    text: str
    imports: tuple[tuple[str, tuple[str, ...]], ...]


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _find(name: str, package_dir: Path) -> Path | None:
    stem = package_dir.joinpath(*name.split(".")[1:])
    places = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((place for place in places if place.is_file()), None)


def _imports(name: str, package_dir: Path) -> set[str]:
    """Our own modules that a module imports anywhere in its text."""
    found: set[str] = set()
    for module, names in _read(name, package_dir).imports:
        if module.partition(".")[0] != package_dir.name:
            continue
        inner = {f"{module}.{taken}" for taken in names}
        modules = {item for item in inner if _find(item, package_dir)}
        # A name that is no module itself lives in the module it is imported from.
        whole = bool(inner) and len(modules) == len(inner)
        found |= modules if whole else modules | {module}
    return {item for item in found if "." in item and _find(item, package_dir)}


def _read(name: str, package_dir: Path) -> _Module:
    path = _find(name, package_dir)
    if path is None:
        raise ModuleNotFoundError(f"{name} is not a module of {package_dir}")
    return _parsed(path.read_text(encoding="utf-8"))


@functools.cache
def _parsed(source: str) -> _Module:
    tree = ast.parse(source)
    imports: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.append((node.module, tuple(alias.name for alias in node.names)))
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return _Module(ast.dump(tree), tuple(imports))
