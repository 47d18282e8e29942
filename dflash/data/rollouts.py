"""Rollouts: the target's own answers to the prompts, as token ids.

A drafter learns to continue what the target says, so its training text must be the target's own
(paper section 5: responses are regenerated). The work is cut into shards of similar length, each
written atomically; a killed run loses at most one shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from dflash.data.generate import generate_batch
from dflash.data.loops import loop_start
from dflash.data.shipped import prompt_key, shipped_answers
from dflash.data.wording import Prompt
from dflash.model.errors import UserError
from dflash.target import Target
from dflash.target.files import replacing
from dflash.target.load import context_limit

Finish = Literal["stop", "length", "loop"]
SHARD_ROWS = 64  # answers lost at most by a kill
SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("domain", pa.string()),
        ("turn", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("answer_ids", pa.list_(pa.int32())),
        ("finish", pa.string()),
    ]
)


@dataclass(frozen=True)
class Rollout:
    """One answer. The sequence a drafter sees is ``prompt_ids`` then ``answer_ids``.

    Attributes:
        turn: 0-based turn of a conversation; earlier turns are part of ``prompt_ids``.
        prompt_ids: ``[P]`` int32, chat template and generation header included.
        answer_ids: ``[A]`` int32, with the stop token when ``finish`` is ``stop``.
        finish: ``stop`` ended by the target, ``length`` cut at the budget, ``loop`` cut where the
            answer began to repeat itself (a loop is trivially accepted and inflates acceptance).
    """

    prompt_id: str
    domain: str
    turn: int
    prompt_ids: np.ndarray
    answer_ids: np.ndarray
    finish: Finish

    @property
    def token_ids(self) -> np.ndarray:
        """``[P + A]`` int32."""
        return np.concatenate([self.prompt_ids, self.answer_ids])


def build_rollouts(
    target: Target,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    directory: Path,
    shipped: bool,
    progress: bool = True,
) -> list[Rollout]:
    """Answer every turn of every prompt, in the order of ``prompts``; resumes in ``directory``.

    Args:
        shipped: take the repository's stored greedy answers where they fit; make the rest.

    Raises:
        UserError: no prompts, or a prompt that leaves no room in the target's context.
    """
    if not prompts:
        raise UserError.of("data", "no prompts", "prompt sets that hold at least one prompt")
    directory.mkdir(parents=True, exist_ok=True)
    rollouts: list[Rollout] = []
    said: dict[tuple[str, int], np.ndarray] = {}  # the target's answers, by prompt and turn
    for turn in range(max(len(prompt.turns) for prompt in prompts)):
        asking = [prompt for prompt in prompts if len(prompt.turns) > turn]
        asked = [_ask(target, prompt, turn, said) for prompt in asking]
        answered = _answer_turn(
            target, asked, max_new_tokens, temperature, seed, directory, shipped, progress
        )
        said |= {(row.prompt_id, turn): row.answer_ids for row in answered}
        rollouts += answered
    order = {prompt.prompt_id: index for index, prompt in enumerate(prompts)}
    return sorted(rollouts, key=lambda row: (order[row.prompt_id], row.turn))


def write_rollouts(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts as one parquet file, atomically."""
    columns = {name: [getattr(row, name) for row in rollouts] for name in SCHEMA.names}
    with replacing(path) as place:
        table = pa.table(columns, schema=SCHEMA)
        pq.write_table(table, place, compression="zstd", write_page_checksum=True)


def read_rollouts(path: Path) -> list[Rollout]:
    """Read what :func:`write_rollouts` wrote.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        table = pq.read_table(path, schema=SCHEMA, page_checksum_verification=True)
        rows = table.to_pylist()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable: {' '.join(str(error).split())}") from None
    for row in rows:
        for name in ("prompt_ids", "answer_ids"):
            row[name] = np.asarray(row[name], dtype=np.int32)
    return [Rollout(**row) for row in rows]


def finish_answer(answer: np.ndarray, stop_token_ids: Sequence[int]) -> tuple[np.ndarray, Finish]:
    """Cut an answer after its first stop token, or where it starts to loop."""
    stops = np.flatnonzero(np.isin(answer, stop_token_ids))
    stopped = stops.size > 0
    body = answer[: stops[0]] if stopped else answer
    loop = loop_start(body)
    if loop is not None:
        return body[: max(loop, 1)], "loop"
    return (answer[: stops[0] + 1], "stop") if stopped else (answer, "length")


def _ask(
    target: Target, prompt: Prompt, turn: int, said: Mapping[tuple[str, int], np.ndarray]
) -> Rollout:
    """The question of a turn, its answer still empty; earlier turns carry the target's answers."""
    messages = []
    for index in range(turn):
        answer = said[prompt.prompt_id, index]
        text = target.decode([t for t in answer if int(t) not in target.stop_token_ids])
        messages.append({"role": "user", "content": prompt.turns[index]})
        messages.append({"role": "assistant", "content": text})
    messages.append({"role": "user", "content": prompt.turns[turn]})
    ids = np.asarray(target.encode_chat(messages), dtype=np.int32)
    empty = np.zeros(0, dtype=np.int32)
    return Rollout(prompt.prompt_id, prompt.domain, turn, ids, empty, "length")


def _answer_turn(
    target: Target,
    asked: list[Rollout],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    directory: Path,
    shipped: bool,
    progress: bool,
) -> list[Rollout]:
    """Fill in the answers of one turn: stored ones first, then shard by shard."""
    known = shipped_answers(target, max_new_tokens) if shipped and temperature == 0 else {}
    answers: dict[int, np.ndarray] = {}
    for index, row in enumerate(asked):
        if (stored := known.get(prompt_key(row.prompt_ids))) is not None:
            answers[index] = stored
    missing = [index for index in range(len(asked)) if index not in answers]
    _check_room(target, [asked[index] for index in missing], max_new_tokens)
    missing.sort(key=lambda index: (len(asked[index].prompt_ids), index))
    turn = asked[0].turn
    bar = tqdm(total=len(asked), desc=f"answers, turn {turn + 1}", disable=not progress, unit="row")
    bar.update(len(answers))
    left = set(directory.glob(f"turn{turn}-shard*.parquet"))
    for start in range(0, len(missing), SHARD_ROWS):
        rows = missing[start : start + SHARD_ROWS]
        path = directory / f"turn{turn}-shard{start // SHARD_ROWS:05d}.parquet"
        left.discard(path)
        prompts = [asked[index].prompt_ids for index in rows]
        made = _resumed(path, prompts)
        if made is None:
            shard_seed = seed + 1_000_003 * turn + start
            made = generate_batch(target, prompts, max_new_tokens, temperature, shard_seed)
            write_rollouts(
                path, [replace(asked[i], answer_ids=a) for i, a in zip(rows, made, strict=True)]
            )
        answers.update(zip(rows, made, strict=True))
        bar.update(len(rows))
    bar.close()
    for path in left:  # of an earlier call with more to answer
        path.unlink()
    return [_finished(row, answers[index], target) for index, row in enumerate(asked)]


def _resumed(path: Path, prompts: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """The answers of a stored shard, if it answers these very prompts."""
    if not path.exists():
        return None
    rows = read_rollouts(path)
    same = len(rows) == len(prompts) and all(
        np.array_equal(row.prompt_ids, prompt) for row, prompt in zip(rows, prompts, strict=True)
    )
    return [row.answer_ids for row in rows] if same else None


def _check_room(target: Target, asked: Sequence[Rollout], max_new_tokens: int) -> None:
    """Before anything is generated: the longest prompts come last."""
    context = context_limit(target.model)
    for row in asked:
        length = len(row.prompt_ids)
        if context is not None and length + max_new_tokens > context:
            raise UserError(
                f"prompt {row.prompt_id!r} (turn {row.turn + 1}) has {length} tokens, which leaves "
                f"no room for {max_new_tokens} new ones in the target's context of {context}"
            )


def _finished(row: Rollout, answer: np.ndarray, target: Target) -> Rollout:
    ids, finish = finish_answer(answer, target.stop_token_ids)
    return replace(row, answer_ids=ids.astype(np.int32), finish=finish)
