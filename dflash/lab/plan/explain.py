"""``dflash explain``: what an experiment is, before a second is spent on it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from dflash.lab.budget import match_text
from dflash.lab.grid import diff_lines, work_text
from dflash.lab.plan.data import Lengths
from dflash.lab.plan.entries import Entry, Plan
from dflash.lab.plan.memory import FORMULA, training_memory
from dflash.lab.plan.rates import UNKNOWN, Rate
from dflash.lab.plan.text import duration, heading, note, paragraph, scaled, size, table
from dflash.lab.plan.work import CellWork
from dflash.lab.stages.common import Lab
from dflash.model.drawing import LEGEND, draw_mask, same_mask
from dflash.model.errors import UserError
from dflash.model.flops import Work, forward_flops
from dflash.training.losses import POSITION_WEIGHTS

T = TypeVar("T")
COUNTED = (
    "FLOPs: forward and backward of the drafter, and with data.mode=online the target's forward. A "
    "resume point is there only while a run lasts."
)
RESUME_POINT = 12  # bytes a parameter: fp32 weights and Adam's two moments


def explain_text(lab: Lab, plan: Plan, rate: Rate | None, context: int) -> str:
    """The whole explanation, at most 100 columns wide.

    Args:
        rate: speed of training; None where nothing was measured or stated.
        context: committed features that a draft step is counted for.

    Raises:
        UserError: no context.
    """
    if context < 1:
        raise UserError.of("--context", context, "an integer of at least 1")
    sections = [
        question_lines(plan),
        arm_lines(plan),
        flop_lines(plan, context),
        mask_lines(plan),
        weight_lines(plan),
        tap_lines(plan),
        data_lines(plan),
        budget_lines(plan, rate),
        store_lines(lab, plan),
    ]
    return "\n".join(line for section in sections for line in section)


def question_lines(plan: Plan) -> list[str]:
    """What is asked, of what."""
    experiment = plan.experiment
    parts = {
        "question": experiment.question,
        "hypothesis": experiment.hypothesis,
        "paper": experiment.paper,
        "target": target_text(plan),
    }
    if experiment.match:
        parts["match"] = match_text(experiment)
    if experiment.invariants:
        parts["invariants"] = "; ".join(map(str, experiment.invariants))
    lines = [line for name, text in parts.items() for line in paragraph(name, text)]
    return [experiment.name, *lines]


def target_text(plan: Plan) -> str:
    """The target with the origin of its sizes, the recipe, the tier and the seeds."""
    config, seeds = plan.experiment.config, ", ".join(map(str, plan.experiment.seeds))
    return (
        f"{config.target.name} (sizes: {plan.target.sizes_from}), recipe {config.recipe}, tier "
        f"{config.tier}, seeds {seeds}"
    )


def arm_lines(plan: Plan) -> list[str]:
    """The resolved difference of every arm."""
    lines = heading("what differs")
    for item in plan.planned:
        mark = "  INVALID (negative control): no result" if item.arm.invalid else ""
        lines.append(f"  {item.arm.name}{mark}")
        lines += diff_lines(item.arm) or ["      the control"]
    return lines


def flop_lines(plan: Plan, context: int) -> list[str]:
    """Parameters, and operations of drafting by part."""
    rows = []
    for item, cell in zip(plan.planned, plan.cells, strict=True):
        block = cell.switches.block_size
        step = Work.of_draft_step(context, block)
        draft = forward_flops(cell.sizes, cell.switches, len(cell.taps), step)
        counts = [draft.fusion, draft.attention, draft.mlp, draft.head, draft.total]
        rows.append([item.arm.name, scaled(item.parameters, ""), *(scaled(n, "") for n in counts)])
    columns = ["arm", "parameters", "fusion", "attention", "mlp", "head", "draft step"]
    remark = (
        f"FLOPs of the forward of one cached draft step: {context} committed features, as many of "
        "them new as a block has slots. Matrix products only, hidden scores included."
    )
    return [*heading("parameters and FLOPs of a draft"), *table(columns, rows), *note(remark)]


def mask_lines(plan: Plan) -> list[str]:
    """Who sees whom, drawn once for arms that see the same."""
    lines = heading("attention mask of one block, in training")
    for names, cell in _groups(plan, lambda c: c.switches, same_mask):
        lines.append(f"  {names}")
        lines += [f"    {line}" for line in draw_mask(cell.switches)]
        if cell.switches.kv.fusion == "input":
            lines += note("  the latest committed feature is added to every slot's input instead")
    return [*lines, *note(LEGEND)]


def weight_lines(plan: Plan) -> list[str]:
    """Weight of every slot in the loss, slot 0 being the anchor."""
    lines = heading("weight of a slot in the loss, slots 1 to block_size-1")
    for names, cell in _groups(plan, slot_weights):
        weights = " ".join(f"{weight:.2f}" for weight in slot_weights(cell)[1:])
        lines += [f"  {names}", *paragraph("", weights)]
    return lines


def slot_weights(cell: CellWork) -> list[float]:
    """``[block_size]`` as training uses them."""
    loss, block = cell.config.train.loss, cell.switches.block_size
    weights: list[float] = POSITION_WEIGHTS[loss.position](block, loss.gamma_for(block)).tolist()
    return weights


def tap_lines(plan: Plan) -> list[str]:
    """Layer ids, 0-based, whose outputs the drafter reads."""
    lines = heading(f"taps: layers of {plan.cells[0].info.num_layers}, their outputs")
    for names, cell in _groups(plan, taps_text):
        lines += [f"  {names}", *paragraph("", taps_text(cell))]
    return lines


def taps_text(cell: CellWork) -> str:
    """The resolved layers in words."""
    if not cell.reads_features:
        return "none: the context is the committed tokens' embeddings"
    return ", ".join(map(str, cell.taps))


def data_lines(plan: Plan) -> list[str]:
    """The data card of the control."""
    cell = plan.cells[0]
    lines = heading("data")
    for name, lengths in (("train", cell.train), ("eval", cell.evaluation)):
        lines += _split_lines(name, lengths)
    run = (
        f"{len(cell.sequences.answer)} sequences, {cell.steps} optimizer steps, "
        f"{cell.passes:.3g} passes, {scaled(cell.train_tokens, 'tokens')} read in a run (control)"
    )
    return [*lines, *paragraph("training", run)]


def _split_lines(name: str, lengths: Lengths) -> list[str]:
    sets = ", ".join(f"{key} {count}" for key, count in lengths.sets.items())
    total = f"{len(lengths.answer)} answers"
    amount = f"{lengths.tokens} tokens" if lengths.counted else f"about {lengths.tokens} tokens"
    caveat = "" if lengths.counted else "; prompts that overlap with others are still counted"
    return paragraph(name, f"{total} ({sets}); {amount}: {lengths.source}{caveat}")


def budget_lines(plan: Plan, rate: Rate | None) -> list[str]:
    """Operations, time, disk and memory of training, and of what is still to do."""
    lines = heading("time, disk and memory of one cell (an arm and a seed)")
    names = ["arm", "FLOPs/step", "FLOPs/run", "training", "checkpoint", "resume", "memory"]
    rows = [
        [item.arm.name, *_budget(cell, rate)]
        for item, cell in zip(plan.planned, plan.cells, strict=True)
    ]
    lines += [*table(names, rows), *note(COUNTED)]
    training = [entry for entry in plan.missing if entry.key.stage == "train"]
    disk = sum(entry.bytes for entry in plan.missing)
    features = sum(entry.bytes for entry in plan.missing if entry.key.stage == "features")
    lines += paragraph("time", _time_text(plan, rate, training))
    lines += paragraph("disk", f"{size(disk)} to be written, {size(features)} of it features")
    return [*lines, *paragraph("memory", f"the peak in training: {FORMULA}")]


def _budget(cell: CellWork, rate: Rate | None) -> list[str]:
    flops = cell.training_flops
    return [
        scaled(flops / max(1, cell.steps), ""),
        scaled(flops, ""),
        "unknown"
        if rate is None
        else duration(flops / rate.flops_per_second / cell.config.train.ranks),
        size(cell.checkpoint_bytes),
        size(RESUME_POINT * cell.parameters),
        size(training_memory(cell).total),
    ]


def _ranks(entry: Entry) -> int:
    train = entry.key.config["train"]
    return int(train["devices"] * train["nodes"])


def _time_text(plan: Plan, rate: Rate | None, training: Sequence[Entry]) -> str:
    if rate is None:
        return UNKNOWN
    work = sum(entry.flops / _ranks(entry) for entry in training)
    seconds = duration(work / rate.flops_per_second)
    bound = "" if plan.cells[0].train.counted else "at most, as lengths are bounds: "
    return (
        f"{bound}{seconds} for the training of {len(training)} cells one after another; "
        f"{rate.source}; rollouts, features, replay and decoding are not timed by the lab and "
        "come on top"
    )


def store_lines(lab: Lab, plan: Plan) -> list[str]:
    """What is there already."""
    lines = heading("store")
    if not plan.target.stored:
        return [
            *lines,
            *paragraph("", f"nothing of this target is known to be in {lab.store.root}"),
        ]
    if not plan.known:
        text = "cannot be told: the hub does not say which version its prompt sets have"
        return [*lines, *paragraph("", text)]
    keys = {entry.key.name: entry.key for entry in plan.entries}
    return [*lines, *paragraph("", work_text(lab, keys))]


def _groups(
    plan: Plan, value: Callable[[CellWork], T], same: Callable[[T, T], bool] = operator.eq
) -> Iterator[tuple[str, CellWork]]:
    """Arms of equal value together, the control's first: their names, and the first one's work."""
    groups: list[tuple[list[str], CellWork]] = []
    for item, cell in zip(plan.planned, plan.cells, strict=True):
        for names, first in groups:
            if same(value(first), value(cell)):
                names.append(item.arm.name)
                break
        else:
            groups.append(([item.arm.name], cell))
    for names, first in groups:
        equal = f" (and equally {', '.join(names[1:])})" if names[1:] else ""
        yield f"{names[0]}{equal}", first
