"""Limits that the user sets, and the refusal to go beyond them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace

from dflash.lab.experiment import Experiment
from dflash.lab.plan.bill import Bill, bill_of, speed_of
from dflash.lab.plan.entries import make_plan
from dflash.lab.plan.rates import Rate, Stated, on_gpu
from dflash.lab.stages.common import Lab
from dflash.model.errors import UserError

VARIABLE = "DFLASH_QUOTA"
EXAMPLE = "gpu_hours=10 disk_gb=200"


@dataclass(frozen=True)
class Quota:
    """Limits on what an experiment still needs; None is no limit.

    Attributes:
        gpu_hours: of one GPU.
        disk_gb: in 10^9 bytes.
        tokens: that all training runs read together.
        throughput: no limit but FLOP/s, for hours where no run was measured yet.
    """

    gpu_hours: float | None = None
    disk_gb: float | None = None
    tokens: float | None = None
    throughput: float | None = None

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Limits from ``gpu_hours=10 disk_gb=200``; commas may stand for blanks.

        Raises:
            UserError: an unknown name, or a value that is no positive number.
        """
        names = [field.name for field in fields(cls)]
        limits: dict[str, float] = {}
        for word in text.replace(",", " ").split():
            name, equals, value = word.partition("=")
            if not equals or name not in names or name in limits:
                raise UserError.of("quota", text, f"each of {', '.join(names)} once, as {EXAMPLE}")
            try:
                limits[name] = float(value)
            except ValueError:
                limits[name] = float("nan")
            if not 0 <= limits[name] < float("inf"):
                raise UserError.of(f"quota {name}", value, "a number from 0 on")
        return cls(**limits)

    def rate(self) -> Rate | None:
        """The stated speed."""
        return Stated(self.throughput).rate()

    @classmethod
    def of_environment(cls) -> Quota:
        """The limits in ``$DFLASH_QUOTA``; none without it."""
        return cls.parse(os.environ.get(VARIABLE, ""))


NO_LIMIT = Quota()


def check_quota(quota: Quota, bill: Bill) -> None:
    """Refuse what is beyond a limit, and what cannot be held against it.

    Raises:
        UserError: names the limit, what is needed, and how to go on.
    """
    if quota.gpu_hours is not None and bill.gpu_hours is None:
        raise UserError(
            f"quota gpu_hours={quota.gpu_hours:g} cannot be checked: no speed is known; add the "
            "FLOP/s that training reaches to the quota, as throughput=140e12"
        )
    needed = {"gpu_hours": bill.gpu_hours, "disk_gb": bill.disk / 1e9, "tokens": bill.tokens}
    for name, value in needed.items():
        limit = getattr(quota, name)
        if limit is not None and value is not None and value > limit:
            raise UserError(
                f"{bill.experiment} needs {name}={value:.4g}, beyond the quota of {limit:g}; raise "
                "the quota, or take fewer seeds, arms, steps or prompts"
            )


def hold_to_quota(lab: Lab, experiment: Experiment, quota: Quota) -> None:
    """Check what an experiment still needs before it runs.

    On a processor it needs no GPU-hours; but what runs elsewhere may, whatever is here.

    Raises:
        UserError: see ``check_quota`` and ``make_plan``.
    """
    if quota == NO_LIMIT:
        return
    plan = make_plan(lab, experiment)
    if experiment.config.executor.kind == "local" and not on_gpu(plan.target.info.device):
        quota = replace(quota, gpu_hours=None)
    check_quota(quota, bill_of(plan, speed_of(lab, plan, quota.rate())))
