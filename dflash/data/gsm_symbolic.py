"""Word problems without end: the generators of GSM-symbolic inside reasoning-gym.

The package keeps them as Python functions ``generate_<template>(rng, difficulty)``. Only those two
files are executed, with the two small helpers they ask for supplied here; the package itself, which
registers a hundred other tasks on import, is not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from random import Random
from types import ModuleType
from typing import Any

from dflash.data.packaged import package_file
from dflash.data.wording import Prompt, math_question
from dflash.model.errors import UserError

Generator = Callable[[Random, float], dict[str, Any]]

# Templates the package itself lists as broken.
BROKEN_TEMPLATES = frozenset({32, 35, 37, 61, 63, 65, 74, 76, 77, 79, 86, 87, 90, 97, 98})
# Templates made from rows of our GSM8K evaluation set.
OVERLAPPING_TEMPLATES = frozenset({4, 30, 52, 70, 85})
# Some templates print thirds in full, which no person would write.
_LONG_DECIMAL = re.compile(r"\d\.\d{3}")
_FILES = ("generators_00_49.py", "generators_50_99.py")


def read_gsm_symbolic(limit: int | None, seed: int) -> list[Prompt]:
    """``limit`` generated word problems, asked like GSM8K.

    Problem i depends on ``seed`` and i only, so a larger limit extends the list. Templates take
    turns in a seeded order, which keeps their counts equal.

    Raises:
        UserError: no limit was given, since the set has no end.
    """
    if limit is None:
        raise UserError.of("limit", limit, "a positive integer, gsm_symbolic is unlimited")
    generators = _generators()
    order = sorted(generators)
    Random(f"gsm_symbolic/{seed}").shuffle(order)
    prompts = []
    for row in range(limit):
        template = order[row % len(order)]
        rng = Random(f"gsm_symbolic/{seed}/{row}")
        question = _question(generators[template], rng)
        name = f"gsm_symbolic/{seed}-{row}-t{template:02d}"
        prompts.append(Prompt(name, "math", (math_question(question),)))
    return prompts


def _question(generator: Generator, rng: Random) -> str:
    """One question in which no number shows more than two decimals."""
    while True:
        question = " ".join(str(generator(rng, 1.0)["question"]).split())
        if not _LONG_DECIMAL.search(question):
            return question


@cache
def _generators() -> dict[int, Generator]:
    """Template number -> generator, without the broken and the overlapping ones."""
    found: dict[int, Generator] = {}
    for file in _FILES:
        path = package_file("reasoning-gym", f"gsm_symbolic/{file}")
        for name, value in vars(_execute(path.read_text(encoding="utf-8"), file)).items():
            if name.startswith("generate_"):
                found[int(name.removeprefix("generate_"))] = value
    skipped = BROKEN_TEMPLATES | OVERLAPPING_TEMPLATES
    return {template: found[template] for template in found if template not in skipped}


def _execute(source: str, file: str) -> ModuleType:
    """Run one generator file with its ``reasoning_gym.utils`` import replaced by our helpers."""
    tree = ast.parse(source, filename=file)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and node.module == "reasoning_gym.utils")
    ]
    module = ModuleType(f"gsm_symbolic_{file.removesuffix('.py')}")
    vars(module).update(is_integer=_is_integer, format_number=str)
    exec(compile(tree, file, "exec"), vars(module))  # a file of an installed, pinned package
    return module


def _is_integer(value: object) -> bool:
    """Whether a number has no fractional part."""
    if isinstance(value, Fraction):
        return value.denominator == 1
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
