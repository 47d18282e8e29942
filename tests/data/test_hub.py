"""Prompt sets of the hub: their sources and wording, without the hub; a few sizes with it."""

from __future__ import annotations

import datasets
import pytest

from dflash.data.prompts import load_prompts
from dflash.data.wording import FUNCTION_REQUEST, REASONING_SUFFIX, Prompt
from dflash.model.errors import UserError

HUB_ROWS = {
    "gsm8k": ({"question": " 1+1? "}, ("1+1?" + REASONING_SUFFIX,), "math"),
    "math500": ({"problem": "$x$?"}, ("$x$?" + REASONING_SUFFIX,), "math"),
    "humaneval": (
        {"prompt": "def f():\n"},
        (f"{FUNCTION_REQUEST}\n```python\ndef f():\n\n```",),
        "code",
    ),
    "mbpp": ({"prompt": "Write f."}, ("Write f.",), "code"),
    "mt_bench": ({"prompt": ["a", "b"], "category": "coding"}, ("a", "b"), "code"),
    "alpaca": ({"instruction": "Do it.", "input": ""}, ("Do it.",), "chat"),
}


@pytest.mark.parametrize("name", HUB_ROWS)
def test_hub_sets_are_worded_as_the_paper_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, turns, domain = HUB_ROWS[name]
    monkeypatch.setattr(datasets, "load_dataset", lambda path, config, split: [row])
    assert load_prompts(f"hub/{name}") == [Prompt(f"hub/{name}/0", domain, turns)]


def test_alpaca_appends_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"instruction": "Sort.", "input": "b a"}
    monkeypatch.setattr(datasets, "load_dataset", lambda path, config, split: [row])
    assert load_prompts("hub/alpaca")[0].turns == ("Sort.\n\nInput:\nb a",)


def test_hub_sources_are_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, str]] = []

    def refuse(path: str, config: str | None, split: str) -> None:
        asked.append((path, config, split))
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    for name in HUB_ROWS:
        with pytest.raises(UserError, match=rf"hub/{name}.*no route.*check the network") as error:
            load_prompts(f"hub/{name}")
        assert "\n" not in str(error.value)
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("HuggingFaceH4/MATH-500", None, "test"),
        ("openai/openai_humaneval", None, "test"),
        ("google-research-datasets/mbpp", "sanitized", "test"),
        ("HuggingFaceH4/mt_bench_prompts", None, "train"),
        ("tatsu-lab/alpaca", None, "train"),
    ]


@pytest.mark.hub
@pytest.mark.parametrize(
    ("name", "size", "turns"), [("gsm8k", 1319, 1), ("mt_bench", 80, 2), ("humaneval", 164, 1)]
)
def test_real_hub_sets(name: str, size: int, turns: int) -> None:
    prompts = load_prompts(f"hub/{name}")
    assert len(prompts) == size
    assert {len(prompt.turns) for prompt in prompts} == {turns}
