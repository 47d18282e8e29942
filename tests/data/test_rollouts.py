from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dflash.data import rollouts as module
from dflash.data import shipped
from dflash.data.rollouts import (
    Rollout,
    build_rollouts,
    finish_answer,
    read_rollouts,
    write_rollouts,
)
from dflash.data.wording import Prompt
from dflash.model.errors import UserError
from dflash.target import TargetConfig, load_target
from tests.decoding.toys import greedy
from tests.lab.tiny import MASK, save_tiny_target

NEW = 10
PROMPTS = [
    Prompt("set/0", "talk", ("Hello there, who are you?", "And then?")),
    Prompt("set/1", "code", ("a",)),
    Prompt("set/2", "talk", ("b c d", "e", "f")),
    Prompt("set/3", "code", ("What is 2 + 2, and why would anybody ask?",)),
    Prompt("set/4", "code", ("zz",)),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    source = str(save_tiny_target(directory / "model"))
    config = TargetConfig("tiny", source, mask_token_id=MASK, device="cpu")
    return load_target(config, directory / "cache")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(module, "SHARD_ROWS", 2)


def build(target, directory, prompts=PROMPTS, temperature=0.0, seed=0, stored=False):
    return build_rollouts(
        target, prompts, NEW, temperature, seed, directory, shipped=stored, progress=False
    )


def plain(rollouts: list[Rollout]) -> list[tuple]:
    return [
        (r.prompt_id, r.domain, r.turn, r.prompt_ids.tolist(), r.answer_ids.tolist(), r.finish)
        for r in rollouts
    ]


def count_calls(patch, stop_before: int | None = None) -> list[int]:
    """Sizes of the batches that are generated; optionally die before one of them."""
    sizes: list[int] = []
    generate = module.generate_batch

    def counted(target, prompts, *rest):
        if len(sizes) == stop_before:
            raise KeyboardInterrupt
        sizes.append(len(prompts))
        return generate(target, prompts, *rest)

    patch.setattr(module, "generate_batch", counted)
    return sizes


def test_every_turn_is_answered_in_the_order_of_the_prompts(target, tmp_path):
    rollouts = build(target, tmp_path)
    turns = [(prompt.prompt_id, turn) for prompt in PROMPTS for turn in range(len(prompt.turns))]
    assert [(row.prompt_id, row.turn) for row in rollouts] == turns
    for row in rollouts:
        raw = greedy(target.model, torch.as_tensor(row.prompt_ids).long()[None], NEW)
        answer, finish = finish_answer(np.array(raw), target.stop_token_ids)
        assert (row.answer_ids.tolist(), row.finish) == (answer.tolist(), finish)
        assert row.answer_ids.dtype == row.prompt_ids.dtype == np.int32
        assert row.token_ids.tolist() == row.prompt_ids.tolist() + row.answer_ids.tolist()


def test_later_turns_carry_the_targets_own_answers(target, tmp_path):
    rollouts = {(row.prompt_id, row.turn): row for row in build(target, tmp_path)}
    said = []
    for turn, question in enumerate(PROMPTS[2].turns):
        row = rollouts["set/2", turn]
        messages = [*said, {"role": "user", "content": question}]
        assert row.prompt_ids.tolist() == target.encode_chat(messages)
        spoken = [t for t in row.answer_ids if t not in target.stop_token_ids]
        said = [*messages, {"role": "assistant", "content": target.decode(spoken)}]
    assert len(said) == 6


def test_stored_shards_of_other_prompts_are_not_resumed(target, tmp_path, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        count_calls(patch, stop_before=2)
        with pytest.raises(KeyboardInterrupt):
            build(target, tmp_path / "killed")
    edited = [*PROMPTS[:1], Prompt("set/1", "code", ("A",)), *PROMPTS[2:4]]
    again = count_calls(monkeypatch)
    resumed = build(target, tmp_path / "killed", edited)
    assert again == [2, 2, 2, 1]  # both stored shards held a prompt that has gone
    assert plain(resumed) == plain(build(target, tmp_path / "new", edited))
    names = sorted(path.name for path in (tmp_path / "killed").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "new").iterdir())


def test_shards_beyond_what_is_asked_are_removed(target, tmp_path):
    build(target, tmp_path / "used")
    kept = build(target, tmp_path / "used", PROMPTS[1:2])
    assert plain(kept) == plain(build(target, tmp_path / "new", PROMPTS[1:2]))
    (shard,) = (tmp_path / "used").glob("turn0-*")
    assert [row.prompt_id for row in read_rollouts(shard)] == ["set/1"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("done", [0, 1, 2, 3, 4])
def test_a_killed_run_goes_on_where_it_was(target, tmp_path, monkeypatch, temperature, done):
    with pytest.MonkeyPatch.context() as patch:
        sizes = count_calls(patch)
        expected = build(target, tmp_path / "whole", temperature=temperature)
    assert sizes == [2, 2, 1, 2, 1]  # five first turns, two second ones, one third
    with pytest.MonkeyPatch.context() as patch:
        count_calls(patch, stop_before=done)
        with pytest.raises(KeyboardInterrupt):
            build(target, tmp_path / "killed", temperature=temperature)
    again = count_calls(monkeypatch)
    resumed = build(target, tmp_path / "killed", temperature=temperature)
    assert again == sizes[done:]
    assert plain(resumed) == plain(expected)


def test_sampling_is_seeded(target, tmp_path):
    first, again, other = (
        plain(build(target, tmp_path / str(n), temperature=1.0, seed=seed))
        for n, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first != other


@pytest.fixture
def carried(target, tmp_path, monkeypatch):
    """Shipped answers to two of the prompts, recognisable: no model would say this."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(shipped, "FOLDER", str(folder))
    shipped._files.cache_clear()
    said = np.array([40, 41, target.stop_token_ids[0]], dtype=np.int32)
    unfinished = np.arange(50, 50 + NEW, dtype=np.int32)

    def key_of(text: str) -> np.ndarray:
        return np.asarray(target.encode_chat([{"role": "user", "content": text}]), dtype=np.int32)

    pairs = [(key_of("a"), said), (key_of("zz"), unfinished)]
    shipped.collect(target, pairs, NEW, folder / "tiny.parquet")
    yield said, unfinished
    shipped._files.cache_clear()


def answers_to(rollouts, *names: str) -> list[list[int]]:
    return [row.answer_ids.tolist() for row in rollouts if row.prompt_id in names]


def test_shipped_answers_are_taken_and_only_the_rest_is_made(
    target, tmp_path, monkeypatch, carried
):
    said, unfinished = carried
    sizes = count_calls(monkeypatch)
    rollouts = build(target, tmp_path / "run", stored=True)
    assert answers_to(rollouts, "set/1", "set/4") == [said.tolist(), unfinished.tolist()]
    finishes = {row.prompt_id: row.finish for row in rollouts if row.turn == 0}
    assert (finishes["set/1"], finishes["set/4"]) == ("stop", "length")
    assert sizes == [2, 1, 2, 1]
    fresh = build(target, tmp_path / "fresh", stored=False)
    others = ("set/0", "set/2", "set/3")
    assert answers_to(rollouts, *others) == answers_to(fresh, *others)


@pytest.mark.parametrize("reason", ["fresh", "sampled", "other target"])
def test_shipped_answers_are_left_alone_otherwise(target, tmp_path, carried, monkeypatch, reason):
    asked = target
    if reason == "other target":
        asked = dataclasses.replace(target, fingerprint="another")
    rollouts = build(
        asked,
        tmp_path / "run",
        temperature=1.0 if reason == "sampled" else 0.0,
        stored=reason != "fresh",
    )
    made = answers_to(rollouts, "set/1", "set/4")
    assert made != [answer.tolist() for answer in carried]
    assert all(len(answer) > 0 for answer in made)


STOPS = (2, 7)


@pytest.mark.parametrize(
    ("answer", "kept", "finish"),
    [
        ([4, 5, 6], [4, 5, 6], "length"),
        ([4, 2, 6, 7], [4, 2], "stop"),
        ([2], [2], "stop"),
        ([4, 5, *[8, 9] * 8], [4, 5], "loop"),
        ([4, 5, *[8, 9] * 8, 7], [4, 5], "loop"),  # a stop token after a loop does not redeem it
        ([8] * 16, [8], "loop"),  # never empty
        ([8] * 15, [8] * 15, "length"),  # too short to be called a loop
    ],
)
def test_how_answers_end(answer, kept, finish):
    ids, ended = finish_answer(np.array(answer), STOPS)
    assert (ids.tolist(), ended) == (kept, finish)


def test_files_keep_everything(tmp_path):
    rows = [
        Rollout("a/0", "x", 1, np.array([1, 2], np.int32), np.array([3], np.int32), "stop"),
        Rollout("a/1", "y", 0, np.array([4], np.int32), np.zeros(0, np.int32), "loop"),
    ]
    write_rollouts(tmp_path / "r.parquet", rows)
    assert plain(read_rollouts(tmp_path / "r.parquet")) == plain(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["r.parquet"]


def test_nothing_to_answer_is_an_error(target, tmp_path):
    with pytest.raises(UserError, match="at least one prompt"):
        build(target, tmp_path, prompts=[])


def test_a_prompt_without_room_is_named_before_anything_is_generated(target, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "generate_batch", lambda *_: pytest.fail("too early"))
    length = max(
        len(target.encode_chat([{"role": "user", "content": p.turns[0]}])) for p in PROMPTS
    )
    monkeypatch.setattr(target.model.config, "max_position_embeddings", length + NEW - 1)
    message = rf"prompt 'set/3' \(turn 1\) has {length} tokens, .* no room for {NEW} new"
    with pytest.raises(UserError, match=message):
        build(target, tmp_path)
    monkeypatch.setattr(target.model.config, "max_position_embeddings", length + NEW)
    with pytest.raises(pytest.fail.Exception, match="too early"):
        build(target, tmp_path)
