"""What an experiment still needs, added up."""

from __future__ import annotations

from dataclasses import dataclass

from dflash.lab.plan.entries import Entry, Plan
from dflash.lab.plan.rates import Rate, measured_rate, on_gpu
from dflash.lab.stages.common import Lab
from dflash.model.errors import UserError

HOUR = 3600.0


@dataclass(frozen=True)
class Speed:
    """What turns operations into time.

    Attributes:
        rate: of the work that arithmetic bounds.
        answers: tokens per second of the target answering in batches; None takes ``rate``, a bound
            from below, since reading the weights and not arithmetic sets that pace.
    """

    rate: Rate
    answers: float | None = None

    def __post_init__(self) -> None:
        if self.answers is not None and not 0 < self.answers < float("inf"):
            raise UserError.of("--answer-rate", self.answers, "a positive number")

    def seconds(self, entry: Entry) -> float:
        """Time of one entry."""
        if entry.answered and self.answers is not None:
            return entry.answered / self.answers
        return entry.flops / self.rate.flops_per_second


@dataclass(frozen=True)
class Bill:
    """Sums over the entries that are missing.

    Attributes:
        tokens: positions that training runs read.
        steps: optimizer steps.
        disk: bytes kept.
        gpu_hours: of one GPU; None where no speed is known.
    """

    experiment: str
    tokens: float
    steps: int
    disk: float
    gpu_hours: float | None


def speed_of(
    lab: Lab, plan: Plan, stated: Rate | None, answers: float | None = None
) -> Speed | None:
    """The stated rate, else what training runs of the store reached on a GPU; None without any."""
    rate = stated or measured_rate(lab.store, plan.cells[0], on_gpu)
    return None if rate is None else Speed(rate, answers)


def bill_of(plan: Plan, speed: Speed | None) -> Bill:
    """Add up what is missing."""
    missing = plan.missing
    hours = None if speed is None else sum(map(speed.seconds, missing)) / HOUR
    return Bill(
        experiment=plan.experiment.name,
        tokens=sum(entry.tokens for entry in missing),
        steps=sum(entry.steps for entry in missing),
        disk=sum(entry.bytes for entry in missing),
        gpu_hours=hours,
    )
