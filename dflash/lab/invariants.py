"""What an experiment promises to hold equal: lines such as ``same parameters except q_only``.

Whatever an arm does not declare is held equal anyway (:mod:`dflash.lab.matched`). An invariant
says more: that the declared change leaves something else alone, which a reader would otherwise have
to believe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.model.errors import UserError

# What can be held equal, and when it is known.
PLANNED = ("parameters",)
MEASURED = {  # -> where a run's facts say it
    "order": "order_hash",
    "anchors": "anchor_hash",
    "features": "feature_hash",
    "steps": "steps",
    "tokens": "tokens",
}
ALLOWED = f"'same WHAT' or 'same WHAT except ARM, ARM'; WHAT: {', '.join((*PLANNED, *MEASURED))}"


@dataclass(frozen=True)
class Invariant:
    """``what`` is equal in every arm and the control, the arms of ``exempt`` aside."""

    what: str
    exempt: tuple[str, ...] = ()

    def __str__(self) -> str:
        rest = f" except {', '.join(self.exempt)}" if self.exempt else ""
        return f"same {self.what}{rest}"


def parse_invariants(lines: Sequence[str], arms: Sequence[str]) -> tuple[Invariant, ...]:
    """Read the field ``invariants``.

    Raises:
        UserError: a line of another form, or about an arm that does not exist.
    """
    return tuple(_parse(line, arms) for line in lines)


def _parse(line: str, arms: Sequence[str]) -> Invariant:
    found = re.fullmatch(r"same (\w+)(?: except (.+))?", line.strip())
    if not found or found[1] not in (*PLANNED, *MEASURED):
        raise UserError.of("invariants", line, ALLOWED)
    exempt = tuple(name.strip() for name in (found[2] or "").split(",") if name.strip())
    for name in exempt:
        if name not in arms:
            raise UserError.of("invariants", line, f"arms of the experiment: {', '.join(arms)}")
    return Invariant(found[1], exempt)


def broken(
    invariants: Sequence[Invariant], arm: str, control: Mapping[str, Any], own: Mapping[str, Any]
) -> str | None:
    """The first invariant that an arm breaks, in words; None when it keeps them all.

    Args:
        control, own: ``what`` -> value, of the control and of the arm; an invariant about
            something that neither knows yet is left for later.
    """
    for invariant in invariants:
        what = invariant.what
        if arm in invariant.exempt or what not in control:
            continue
        if control[what] != own[what]:
            return f"{arm} breaks {str(invariant)!r}: {own[what]}, the control has {control[what]}"
    return None
