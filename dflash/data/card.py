"""The data card: what the drafter was trained and judged on, counted, and the gates it must pass.

``data_card`` only counts; ``check_card`` compares the counts with ``Gates`` and refuses. Both sides
of a run go through it, because a bad evaluation answer spoils a table as a bad training answer
spoils a drafter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.data.overlap import OverlapReport
from dflash.data.wording import set_name
from dflash.model.errors import UserError

if TYPE_CHECKING:
    from dflash.data.rollouts import Rollout

FINISHES = ("stop", "length", "loop")
# Lower edges of the answer-length histogram, in tokens; the last bin has no upper edge.
LENGTH_EDGES = (0, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class Gates:
    """The limits of ``check_card``; the only place where these numbers are written.

    Attributes:
        min_supervised: smallest share of answer tokens among all training tokens.
        max_empty: largest share of answers without a token before the stop token.
        max_truncated: largest share of training answers that ran into the token limit.
        min_answers: shares of fewer answers than this say nothing and are not gated.
    """

    min_supervised: float = 0.05
    max_empty: float = 0.05
    max_truncated: float = 0.98
    min_answers: int = 20


def data_card(
    train: Sequence[Rollout],
    evaluation: Sequence[Rollout],
    *,
    template_hash: str,
    rollout_template_hash: str,
    mask_token_id: int | None,
    response_source: Mapping[str, int],
    overlap: OverlapReport | None = None,
) -> dict[str, Any]:
    """Count everything worth knowing about a run's data; JSON-ready.

    Args:
        train, evaluation: answers of the target. One rollout is one turn.
        template_hash: chat template and thinking mode of the target in use.
        rollout_template_hash: the same, of the target that wrote the rollouts.
        mask_token_id: of the drafter, None if it has none.
        response_source: who wrote the answers and how many, such as ``{"shipped": 900}``;
            anything but the target itself costs acceptance.
        overlap: report of ``drop_overlap``.
    """
    sides = {"train": train, "eval": evaluation}
    return {
        "response_source": dict(response_source),
        "template_hash": {"target": template_hash, "rollouts": rollout_template_hash},
        "mask_token_id": mask_token_id,
        "mask_token_in": [
            row.prompt_id
            for row in (*train, *evaluation)
            if mask_token_id is not None and _contains(row, mask_token_id)
        ],
        "overlap": None if overlap is None else overlap.as_dict(),
        **{
            side: {
                "total": _counts(rows),
                "sets": {name: _counts(part) for name, part in _by_set(rows).items()},
                "domains": dict(sorted(Counter(row.domain for row in rows).items())),
                "answer_lengths": _length_histogram(rows),
            }
            for side, rows in sides.items()
        },
    }


def check_card(card: Mapping[str, Any], gates: Gates | None = None) -> None:
    """Refuse data on which a drafter cannot be trained or judged honestly.

    Raises:
        UserError: the first gate that fails, with the count, the limit and what to change.
    """
    limits = Gates() if gates is None else gates
    _check_prompt_sets(card)
    hashes = card["template_hash"]
    if hashes["target"] != hashes["rollouts"]:
        raise UserError(
            f"the rollouts were made with chat template {hashes['rollouts']}, the target now uses "
            f"{hashes['target']}; set target.thinking as it was, or take data.rollouts=fresh"
        )
    if card["mask_token_in"]:
        raise UserError(
            f"mask token id {card['mask_token_id']} occurs in the data, for example in "
            f"{card['mask_token_in'][0]}; set target.mask_token_id to an unused id"
        )
    for side in ("train", "eval"):
        _check_share(side, "empty", card[side]["total"], limits.max_empty, limits, "data.train")
    total = card["train"]["total"]
    _check_share("train", "truncated", total, limits.max_truncated, limits, "data.train_new_tokens")
    if total["supervised_fraction"] < limits.min_supervised:
        raise UserError(
            f"only {total['supervised_fraction']:.1%} of the training tokens are answer tokens, at "
            f"least {limits.min_supervised:.1%} are needed; raise data.train_new_tokens"
        )


def _check_prompt_sets(card: Mapping[str, Any]) -> None:
    for side in ("train", "eval"):
        if card[side]["total"]["answers"] == 0:
            raise UserError(f"no answers for data.{side}: its prompt sets are empty")
    for name, counts in ((card["overlap"] or {}).get("sets", {})).items():
        if counts["kept"] == 0:
            raise UserError(
                f"prompt set {name!r} of data.train is empty: all {counts['prompts']} prompts "
                "overlap with evaluation prompts or repeat others"
            )


def _check_share(
    side: str, kind: str, total: Mapping[str, Any], limit: float, gates: Gates, field: str
) -> None:
    count, answers = total[kind], total["answers"]
    if answers >= gates.min_answers and count > limit * answers:
        raise UserError(
            f"{count} of {answers} answers of data.{side} are {kind}, at most {limit:.0%} may be; "
            f"check {field.replace('train', side, 1)}"
        )


def _counts(rows: Sequence[Rollout]) -> dict[str, Any]:
    prompt_tokens = sum(len(row.prompt_ids) for row in rows)
    answer_tokens = sum(len(row.answer_ids) for row in rows)
    finishes: Counter[str] = Counter(row.finish for row in rows)
    return {
        "prompts": len({row.prompt_id for row in rows}),
        "answers": len(rows),
        "prompt_tokens": prompt_tokens,
        "answer_tokens": answer_tokens,
        "supervised_fraction": answer_tokens / max(1, prompt_tokens + answer_tokens),
        "empty": sum(_is_empty(row) for row in rows),
        "truncated": finishes["length"],
        "looping": finishes["loop"],
        "finish": {finish: finishes[finish] for finish in FINISHES},
    }


def _is_empty(row: Rollout) -> bool:
    """No token, or nothing but the stop token."""
    return len(row.answer_ids) <= (1 if row.finish == "stop" else 0)


def _contains(row: Rollout, token_id: int) -> bool:
    return bool(np.any(row.prompt_ids == token_id) or np.any(row.answer_ids == token_id))


def _by_set(rows: Iterable[Rollout]) -> dict[str, list[Rollout]]:
    groups: dict[str, list[Rollout]] = {}
    for row in rows:
        groups.setdefault(set_name(row.prompt_id), []).append(row)
    return groups


def _length_histogram(rows: Sequence[Rollout]) -> dict[str, int]:
    """Label such as ``16-31`` -> number of answers with so many tokens."""
    edges = np.array([*LENGTH_EDGES, np.iinfo(np.int64).max])
    counts, _ = np.histogram([len(row.answer_ids) for row in rows], bins=edges)
    labels = [f"{low}-{high - 1}" for low, high in pairwise(LENGTH_EDGES)]
    labels.append(f"{LENGTH_EDGES[-1]}+")
    return dict(zip(labels, counts.tolist(), strict=True))
