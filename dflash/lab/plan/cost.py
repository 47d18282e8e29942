"""``dflash cost``: the bill of an experiment on a GPU."""

from __future__ import annotations

from dflash.lab.budget import RULES
from dflash.lab.plan.bill import HOUR, Bill, Speed
from dflash.lab.plan.entries import Entry, Plan
from dflash.lab.plan.explain import data_lines, store_lines, target_text
from dflash.lab.plan.memory import training_memory
from dflash.lab.plan.rates import UNKNOWN
from dflash.lab.plan.text import heading, note, paragraph, scaled, size, table
from dflash.lab.stages.common import Lab
from dflash.model.errors import UserError

STAGES = ("rollouts", "features", "train", "replay", "autoregressive", "decode")
ASSUMED = (
    "Hours are FLOPs divided by the speed above, for every stage. That is a bound from below for "
    "decoding (rollouts, autoregressive, decode), where reading the weights sets the pace: state "
    "--answer-rate TOKENS/S for rollouts. Decoding is counted at its longest: no answer stops "
    "early and nothing drafted is accepted. Floors, tables and start-up are not counted."
)


def cost_text(lab: Lab, plan: Plan, bill: Bill, speed: Speed | None, price: float | None) -> str:
    """The bill with every assumption, at most 100 columns wide.

    Args:
        speed: None where nothing was measured or stated.
        price: of one GPU for an hour, in whatever currency; None prints none.

    Raises:
        UserError: a price below 0.
    """
    if price is not None and not 0 <= price < float("inf"):
        raise UserError.of("--price", price, "a number from 0 on")
    lines = [f"{plan.experiment.name}: what it still needs on one GPU"]
    lines += paragraph("target", target_text(plan))
    lines += paragraph("cells", f"{len(plan.cells)} arms x {len(plan.experiment.seeds)} seeds")
    lines += paragraph("match", unmatched) if (unmatched := _unmatched(plan)) else []
    lines += data_lines(plan)
    lines += heading("by stage")
    lines += table(["stage", "missing", "FLOPs", "tokens", "disk", "GPU-hours"], _rows(plan, speed))
    lines += ["", *_totals(plan, bill, speed, price)]
    lines += note(ASSUMED) if speed is not None else []
    return "\n".join([*lines, *store_lines(lab, plan)])


def _unmatched(plan: Plan) -> str:
    """What a match that needs the answers or a measurement leaves out of the bill."""
    match = plan.experiment.match
    if not match or RULES[match].planned:
        return ""
    return (
        f"{match}: {RULES[match].key} of the arms is not known yet; priced at the steps without it"
    )


def _rows(plan: Plan, speed: Speed | None) -> list[list[str]]:
    rows = []
    for stage in STAGES:
        every = [entry for entry in plan.entries if entry.key.stage == stage]
        missing = [entry for entry in every if not entry.stored]
        if every:
            rows.append([stage, f"{len(missing)} of {len(every)}", *_sums(missing, speed)])
    return rows


def _sums(entries: list[Entry], speed: Speed | None) -> list[str]:
    tokens = sum(entry.answered + entry.tokens for entry in entries)
    disk = sum(entry.bytes for entry in entries)
    hours = "unknown" if speed is None else f"{sum(map(speed.seconds, entries)) / HOUR:.3g}"
    flops = sum(entry.flops for entry in entries)
    return [
        scaled(flops, ""),
        scaled(tokens, "") if tokens else "",
        size(disk) if disk else "",
        hours,
    ]


def _totals(plan: Plan, bill: Bill, speed: Speed | None, price: float | None) -> list[str]:
    memory = max(training_memory(cell).total for cell in plan.cells)
    lines = paragraph("training", f"{bill.steps} steps over {scaled(bill.tokens, 'tokens')}")
    lines += paragraph("disk", f"{size(bill.disk)} {_feature_text(plan)}")
    lines += paragraph("memory", f"{size(memory)} at most in training, estimated")
    if speed is None or bill.gpu_hours is None:
        return [*lines, *paragraph("GPU-hours", UNKNOWN)]
    rollouts = "" if speed.answers is None else f"; answers {speed.answers:g} tokens/s as stated"
    lines += paragraph("speed", f"{speed.rate.source}{rollouts}")
    lines += paragraph("GPU-hours", f"{bill.gpu_hours:.3g}")
    if price is not None:
        lines += paragraph("price", f"{bill.gpu_hours * price:.2f}, at {price:g} per GPU-hour")
    return lines


def _feature_text(plan: Plan) -> str:
    """Why features take what they take."""
    online = plan.experiment.config.data.mode == "online"
    if online:
        return "(data.mode=online: training features are computed each step and not stored)"
    return "(data.mode=offline: features of every layer tapped, for every token)"
