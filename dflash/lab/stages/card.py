"""The data card of a run: counted anew from the stored answers, and held against the gates."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dflash.data.card import check_card, data_card
from dflash.data.overlap import OverlapReport, SetOverlap
from dflash.lab.config import LabConfig
from dflash.lab.stages.answers import OVERLAP, Answers
from dflash.lab.stages.common import read_json
from dflash.lab.stages.target import TargetInfo


def checked_card(
    config: LabConfig, info: TargetInfo, train: Answers, evaluation: Answers
) -> dict[str, Any]:
    """The card, JSON-ready.

    Raises:
        UserError: the first gate that fails.
    """
    facts = [train.facts(), evaluation.facts()]
    sources = sum((Counter(fact["source"]) for fact in facts), Counter[str]())
    card = data_card(
        train.rollouts(),
        evaluation.rollouts(),
        template_hash=info.template_hash,
        rollout_template_hash=facts[0]["template_hash"],
        mask_token_id=config.target.mask_token_id,
        response_source=sources,
        overlap=_overlap(read_json(train.entry / OVERLAP)),
    )
    check_card(card)
    return card


def _overlap(data: dict[str, Any]) -> OverlapReport:
    counted = ("prompts", "overlapping", "duplicates")
    sets = {
        name: SetOverlap(**{key: counts[key] for key in counted})
        for name, counts in data["sets"].items()
    }
    return OverlapReport(data["n"], sets, data["overlapping"], data["duplicates"])
