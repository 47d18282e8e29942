"""Prompt sets that come from the Hugging Face hub through ``datasets``, worded as the paper does.

Source of ids, splits and wordings: paper.md section 4 (the reference benchmark script).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dflash.data.wording import Prompt, domain_name, function_task, math_question
from dflash.model.errors import UserError

Row = dict[str, Any]


@dataclass(frozen=True)
class HubSet:
    """One data set on the hub.

    Attributes:
        path: id on the hub.
        config: configuration name, None for the only one.
        split: name of the split.
        domain: of a row.
        turns: user messages of a row.
    """

    path: str
    config: str | None
    split: str
    domain: Callable[[Row], str]
    turns: Callable[[Row], tuple[str, ...]]


def _alpaca_turn(row: Row) -> str:
    extra = f"\n\nInput:\n{row['input']}" if row["input"] else ""
    return row["instruction"] + extra


HUB_SETS: dict[str, HubSet] = {
    "gsm8k": HubSet(
        "openai/gsm8k",
        "main",
        "test",
        lambda row: "math",
        lambda row: (math_question(row["question"]),),
    ),
    "math500": HubSet(
        "HuggingFaceH4/MATH-500",
        None,
        "test",
        lambda row: "math",
        lambda row: (math_question(row["problem"]),),
    ),
    "humaneval": HubSet(
        "openai/openai_humaneval",
        None,
        "test",
        lambda row: "code",
        lambda row: (function_task(row["prompt"]),),
    ),
    "mbpp": HubSet(
        "google-research-datasets/mbpp",
        "sanitized",
        "test",
        lambda row: "code",
        lambda row: (row["prompt"],),
    ),
    "mt_bench": HubSet(
        "HuggingFaceH4/mt_bench_prompts",
        None,
        "train",
        lambda row: domain_name(row["category"]),
        lambda row: tuple(row["prompt"]),
    ),
    "alpaca": HubSet(
        "tatsu-lab/alpaca",
        None,
        "train",
        lambda row: "chat",
        lambda row: (_alpaca_turn(row),),
    ),
}


def read_hub(name: str) -> list[Prompt]:
    """Every row of one hub set; ids are ``hub/<name>/<row>``.

    Raises:
        UserError: the hub or its cache does not give the data set.
    """
    import datasets  # heavy, and only this function and the next need it

    source = HUB_SETS[name]
    with _reaching(name):
        rows = datasets.load_dataset(source.path, source.config, split=source.split)
    return [
        Prompt(f"hub/{name}/{index}", source.domain(row), source.turns(row))
        for index, row in enumerate(rows)
    ]


@functools.cache
def hub_version(name: str) -> str:
    """The commit that ``read_hub`` reads.

    Raises:
        UserError: the hub or its cache does not give the data set.
    """
    import datasets

    source = HUB_SETS[name]
    with _reaching(name):
        return str(datasets.load_dataset_builder(source.path, source.config).hash)


@contextlib.contextmanager
def _reaching(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ConnectionError and DatasetNotFoundError among them
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"prompt set 'hub/{name}' could not load {HUB_SETS[name].path} from the hub "
            f"({reason}); check the network, or take a set that needs no hub, such as gsm8k"
        ) from error
