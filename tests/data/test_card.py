"""The data card: exact counts on a hand-made set, and every gate opened and shut."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dflash.data.card import LENGTH_EDGES, Gates, check_card, data_card
from dflash.data.overlap import OverlapReport, drop_overlap
from dflash.data.rollouts import Finish, Rollout
from dflash.data.wording import Prompt
from dflash.model.errors import UserError


def rollout(
    prompt_id: str, prompt: int, answer: int, finish: Finish = "stop", turn: int = 0
) -> Rollout:
    """``prompt`` tokens of id 1 and ``answer`` tokens of id 2."""
    return Rollout(
        prompt_id,
        "math" if prompt_id.startswith("a") else "code",
        turn,
        np.full(prompt, 1, np.int32),
        np.full(answer, 2, np.int32),
        finish,
    )


TRAIN = [
    rollout("a/0", 10, 20),
    rollout("a/0", 40, 40, "length", turn=1),
    rollout("b/x/0", 10, 1),
    rollout("b/x/1", 10, 0, "loop"),
]
EVAL = [rollout("e/0", 5, 15)]


def card_of(
    train: list[Rollout] | None = None, evaluation: list[Rollout] | None = None, **changes: Any
) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "template_hash": "t1",
        "rollout_template_hash": "t1",
        "mask_token_id": 9,
        "response_source": {"shipped": 4, "fresh": 1},
    }
    return data_card(
        TRAIN if train is None else train,
        EVAL if evaluation is None else evaluation,
        **(arguments | changes),
    )


def test_counts() -> None:
    card = card_of()
    total = card["train"]["total"]
    assert total["prompts"] == 3
    assert total["answers"] == 4
    assert total["prompt_tokens"] == 70
    assert total["answer_tokens"] == 61
    assert total["supervised_fraction"] == pytest.approx(61 / 131)
    assert total["empty"] == 2  # nothing but the stop token, and nothing at all
    assert total["truncated"] == 1
    assert total["looping"] == 1
    assert total["finish"] == {"stop": 2, "length": 1, "loop": 1}
    assert card["train"]["sets"]["a"]["answers"] == 2
    assert card["train"]["sets"]["b/x"]["answers"] == 2
    assert card["train"]["domains"] == {"code": 2, "math": 2}
    assert card["eval"]["total"]["answer_tokens"] == 15
    assert card["response_source"] == {"shipped": 4, "fresh": 1}


def test_length_histogram_counts_every_answer_once() -> None:
    lengths = [0, 15, 16, 31, LENGTH_EDGES[-1], 10 * LENGTH_EDGES[-1]]
    card = card_of([rollout(f"a/{i}", 1, length) for i, length in enumerate(lengths)])
    histogram = card["train"]["answer_lengths"]
    assert histogram["0-15"] == 2
    assert histogram["16-31"] == 2
    assert histogram[f"{LENGTH_EDGES[-1]}+"] == 2
    assert sum(histogram.values()) == len(lengths)


def test_card_survives_json_with_an_overlap_report() -> None:
    prompts = [Prompt("a/0", "math", ("one",)), Prompt("a/1", "math", ("one",))]
    _, report = drop_overlap(prompts, [])
    card = card_of(overlap=report)
    assert json.loads(json.dumps(card)) == card
    assert card["overlap"]["sets"]["a"]["kept"] == 1


def good(count: int = 40) -> list[Rollout]:
    return [rollout(f"a/{i}", 10, 20) for i in range(count)]


def test_good_data_passes() -> None:
    check_card(card_of(good()))


def test_template_mismatch_is_refused() -> None:
    with pytest.raises(UserError, match=r"t0.*t1.*data\.rollouts=fresh"):
        check_card(card_of(good(), rollout_template_hash="t0"))


@pytest.mark.parametrize("place", ["prompt_ids", "answer_ids"])
@pytest.mark.parametrize("side", ["train", "evaluation"])
def test_mask_token_in_the_data_is_refused(place: str, side: str) -> None:
    rows = good()
    getattr(rows[7], place)[3] = 9
    arguments: dict[str, Any] = {"train": good(), "evaluation": EVAL} | {side: rows}
    with pytest.raises(UserError, match=r"mask token id 9 .* a/7; set target\.mask_token_id"):
        check_card(card_of(**arguments))


def test_without_a_mask_token_nothing_is_searched() -> None:
    check_card(card_of(good(), mask_token_id=None))


def test_low_supervised_fraction_is_refused() -> None:
    rows = [rollout(f"a/{i}", 400, 10) for i in range(40)]
    with pytest.raises(UserError, match=r"only 2\.4% .* data\.train_new_tokens"):
        check_card(card_of(rows))
    check_card(card_of(rows), Gates(min_supervised=0.02))


@pytest.mark.parametrize("side", ["train", "eval"])
def test_empty_answers_are_refused(side: str) -> None:
    rows = good() + [rollout(f"a/{100 + i}", 10, 1) for i in range(10)]
    card = card_of(rows, EVAL) if side == "train" else card_of(good(), rows)
    with pytest.raises(UserError, match=rf"10 of 50 answers of data\.{side} are empty"):
        check_card(card)
    check_card(card, Gates(max_empty=0.2))


def test_truncated_training_answers_are_refused_beyond_the_limit() -> None:
    rows = good(30) + [rollout(f"a/{100 + i}", 10, 20, "length") for i in range(10)]
    with pytest.raises(UserError, match=r"10 of 40 .* truncated.* data\.train_new_tokens"):
        check_card(card_of(rows), Gates(max_truncated=0.2))
    check_card(card_of(rows), Gates(max_truncated=0.25))


def test_shares_of_a_handful_of_answers_are_not_gated() -> None:
    rows = [rollout(f"a/{i}", 10, 20, "length") for i in range(5)]
    check_card(card_of(rows))
    with pytest.raises(UserError, match="truncated"):
        check_card(card_of(rows), Gates(min_answers=5))


@pytest.mark.parametrize("side", ["train", "eval"])
def test_no_answers_are_refused(side: str) -> None:
    card = card_of([], EVAL) if side == "train" else card_of(good(), [])
    with pytest.raises(UserError, match=rf"no answers for data\.{side}"):
        check_card(card)


def test_a_set_that_overlap_emptied_is_refused() -> None:
    prompts = [Prompt("a/0", "math", ("hello",))]
    _, report = drop_overlap(prompts, [Prompt("e/0", "math", ("hello",))])
    with pytest.raises(UserError, match=r"prompt set 'a' of data\.train is empty: all 1 prompts"):
        check_card(card_of(good(), overlap=report))
    check_card(card_of(good(), overlap=OverlapReport(8)))
