"""The attention mask of one block as text, made by the mask code itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.model.layout import TrainingLayout, dense_mask
from dflash.model.masks import Visibility
from dflash.model.switches import DrafterSwitches, argument_of

SHORT = 8  # committed features drawn at least
AHEAD = 3  # features from the anchor on drawn at least: no slot may see them
SEEN, UNSEEN, LEAKED, LEFT_OUT, BORDER = "■", "·", "!", "…", "│"
LEGEND = (
    f"{SEEN} seen, {UNSEEN} not seen, {LEAKED} leaked: training shows it, decoding cannot; "
    f"{LEFT_OUT} columns like their neighbours"
)


def training_mask(switches: DrafterSwitches, anchor: int, ahead: int) -> Tensor:
    """Visibility of one block in training.

    Args:
        anchor: position of the block's slot 0, and so the number of committed features.
        ahead: features from the anchor on that the row holds, too.

    Returns:
        ``[slots, anchor + ahead + slots]`` bool, query first; fewer columns for a drafter that
        lacks one of the two kinds of keys.
    """
    layout = TrainingLayout(
        context_length=anchor + ahead,
        anchors=torch.tensor([[anchor]]),
        valid=torch.tensor([[True]]),
        lengths=torch.tensor([anchor + ahead]),
        block_size=switches.block_size,
    )
    return dense_mask(layout, Visibility.of(switches, training=True))[0, 0]


def same_mask(one: DrafterSwitches, other: DrafterSwitches) -> bool:
    """Whether two drafters' slots see the same, over a context longer than any window of theirs."""
    if one.block_size != other.block_size:
        return False
    anchor = max(_telling_length(one), _telling_length(other))
    ahead = max(_ahead(one), _ahead(other))
    return torch.equal(training_mask(one, anchor, ahead), training_mask(other, anchor, ahead))


def draw_mask(switches: DrafterSwitches) -> list[str]:
    """The training mask of one block: a row per slot, a column per key, labelled by position.

    The context is as short as shows what the rule does; columns of the context that equal both
    neighbours are left out. Decoding differs in the leaked entries alone.
    """
    anchor, ahead = _telling_length(switches), _ahead(switches)
    mask = training_mask(switches, anchor, ahead)
    split = anchor + ahead if switches.context_keys else 0
    parts = []
    if switches.context_keys:
        parts.append(_Part("features", mask, _shown(mask[:, :anchor]), 0))
        parts.append(_Part("ahead", mask, list(range(anchor, split)), 0, LEAKED))
    if switches.block_keys:
        parts.append(_Part("block", mask[:, split:], list(range(switches.block_size)), anchor))
    lines = _header(parts)
    for slot in range(switches.block_size):
        name = "anchor" if slot == 0 else f"slot {slot}"
        lines.append(_line(f"{name:<8}{anchor + slot:>4}", [part.cells(slot) for part in parts]))
    return lines


@dataclass(frozen=True)
class _Part:
    """Some columns of a mask, side by side; the column None stands for those left out."""

    name: str
    mask: Tensor  # [slots, keys] bool
    columns: list[int | None]
    offset: int  # position of column 0
    seen: str = SEEN

    def cells(self, slot: int) -> str:
        row = self.mask[slot].tolist()
        marks = [
            LEFT_OUT if key is None else self.seen if row[key] else UNSEEN for key in self.columns
        ]
        return " ".join(marks)

    def positions(self) -> list[str]:
        return ["" if key is None else str(key + self.offset) for key in self.columns]


def _header(parts: Sequence[_Part]) -> list[str]:
    """What the columns are, and their positions written downwards."""
    names = [f"{part.name:<{2 * len(part.columns) - 1}}" for part in parts]
    lines = [_line("", names)]
    longest = max(len(text) for part in parts for text in part.positions())
    for digit in range(longest):
        title = "position" if digit == longest - 1 else ""
        lines.append(
            _line(
                title,
                [" ".join(f"{p:>{longest}}"[digit] for p in part.positions()) for part in parts],
            )
        )
    return lines


def _line(title: str, cells: Sequence[str]) -> str:
    return f"{title:<14}{f' {BORDER} '.join(cells)}".rstrip()


def _shown(context: Tensor) -> list[int | None]:
    """Column numbers with runs of columns like both their neighbours replaced by one None."""
    count = context.shape[1]
    shown: list[int | None] = []
    for key in range(count):
        inner = 1 < key < count - 2
        here = context[:, key]
        plain = inner and all(torch.equal(here, context[:, key + by]) for by in (-1, 1))
        if not plain:
            shown.append(key)
        elif shown[-1] is not None:
            shown.append(None)
    return shown


def _telling_length(switches: DrafterSwitches) -> int:
    """Committed features enough to show where a window begins and an index rule ends."""
    rule = switches.attention.context
    window = argument_of(rule) if rule.startswith("window:") else 1
    return max(SHORT, window + 3, switches.block_size + 3 if rule == "index_causal" else 0)


def _ahead(switches: DrafterSwitches) -> int:
    return max(AHEAD, switches.attention.leak + 1 if switches.attention.leak else 0)
