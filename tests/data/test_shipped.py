from __future__ import annotations

import numpy as np
import pytest

from dflash.data import shipped
from dflash.data.shipped import collect, prompt_key, shipped_answers
from tests.data.toys import STOP, small_target


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder of shipped files in place of the package's."""
    monkeypatch.setattr(shipped, "FOLDER", str(tmp_path))
    shipped._files.cache_clear()
    yield tmp_path
    shipped._files.cache_clear()


def test_key_depends_on_every_token():
    keys = {prompt_key(ids(*p)) for p in [(1, 2), (2, 1), (1, 2, 0), (1, 3)]}
    assert len(keys) == 4
    assert prompt_key(ids(1, 2)) == prompt_key(np.array([1, 2], dtype=np.int64))
    # frozen: another hash would find none of the stored answers
    assert prompt_key(ids(1, 2)).hex() == "2cc5e4d47c5f3c5fbe635a5a5b7bb392"


def test_answers_come_back_by_prompt(store):
    target = small_target()
    pairs = [(ids(1, 2), ids(3, 4, STOP)), (ids(5), ids(6, 7, 8, 1))]
    size = collect(target, pairs, 4, store / "toy.parquet")
    assert size == (store / "toy.parquet").stat().st_size
    answers = shipped_answers(target, 4)
    assert {key: a.tolist() for key, a in answers.items()} == {
        prompt_key(prompt): answer.tolist() for prompt, answer in pairs
    }


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (2, {5: [6, 7], 1: [3, 4]}),  # cut to what was asked for
        (4, {5: [6, 7, 8, 1], 1: [3, 4, STOP]}),
        (5, {1: [3, 4, STOP]}),  # the other was cut at 4 and might have gone on
    ],
)
def test_an_answer_serves_smaller_budgets_and_larger_ones_if_it_stopped(store, budget, expected):
    target = small_target()
    pairs = [(ids(1), ids(3, 4, STOP)), (ids(5), ids(6, 7, 8, 1))]
    collect(target, pairs, 4, store / "toy.parquet")
    answers = shipped_answers(target, budget)
    assert {key: a.tolist() for key, a in answers.items()} == {
        prompt_key(ids(prompt)): answer for prompt, answer in expected.items()
    }


def test_a_file_grows_and_keeps_the_larger_budget(store):
    target, path = small_target(), store / "toy.parquet"
    collect(target, [(ids(1), ids(3, 4, 5)), (ids(2), ids(6, 7))], 3, path)
    collect(
        target, [(ids(1), ids(3, 4)), (ids(2), ids(6, 7, 8, 9)), (ids(5), ids(1, STOP))], 2, path
    )
    collect(target, [(ids(2), ids(6, 7, 8, 9))], 4, path)
    answers = shipped_answers(target, 3)
    assert {key: a.tolist() for key, a in answers.items()} == {
        prompt_key(ids(1)): [3, 4, 5],
        prompt_key(ids(2)): [6, 7, 8],
        prompt_key(ids(5)): [1, STOP],
    }


def test_a_file_of_another_target_is_replaced(store):
    target, path = small_target(), store / "toy.parquet"
    collect(target, [(ids(1), ids(3, STOP))], 4, path)
    target.fingerprint = "other"
    collect(target, [(ids(2), ids(4, STOP))], 4, path)
    assert list(shipped_answers(target, 4)) == [prompt_key(ids(2))]


def test_other_targets_get_nothing(store):
    target = small_target()
    collect(target, [(ids(1), ids(3, STOP))], 4, store / "toy.parquet")
    target.fingerprint = "other"
    assert shipped_answers(target, 4) == {}


def test_no_folder_no_answers(store, monkeypatch):
    monkeypatch.setattr(shipped, "FOLDER", str(store / "missing"))
    assert shipped_answers(small_target(), 4) == {}
