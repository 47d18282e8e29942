"""One visual language for all figures: who is which colour, marker and line, and how big.

Okabe and Ito's colour-blind safe palette. The control is always the black circle with the solid
line. Every arm also has its own marker and line style, so that a figure survives a grey printer;
negative controls and floors have hollow markers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

COLUMN_WIDTH = 3.5  # inches: one column of a two-column paper
INVALID = " (invalid)"

# matplotlib types the keys as one long Literal
RC: dict[Any, Any] = {
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.dpi": 150,
    "savefig.dpi": 300,
    "svg.hashsalt": "dflash-lab",  # equal figures give equal files
    "pdf.fonttype": 42,
}

CONTROL_COLOUR = "#000000"
STAMP_COLOUR = "#B00020"
_COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_MARKERS = ["s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*"]
_LINES: list[str | tuple[int, tuple[int, ...]]] = ["--", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1))]
_FLOOR_COLOUR = "#777777"


@dataclass(frozen=True)
class Look:
    """How one arm is drawn."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[int, ...]]
    filled: bool

    @property
    def face(self) -> str:
        return self.colour if self.filled else "white"


def looks(
    arms: Iterable[str], control: str = "control", invalid: Iterable[str] = ()
) -> dict[str, Look]:
    """A look for each arm, by its place among the arms: equal in all figures of an experiment."""
    hollow = set(invalid)
    result = {}
    others = floors = 0
    for arm in arms:
        if arm == control:
            result[arm] = Look(CONTROL_COLOUR, "o", "-", arm not in hollow)
        elif arm.startswith("floor:"):
            marker = _MARKERS[floors % len(_MARKERS)]
            result[arm] = Look(_FLOOR_COLOUR, marker, ":", False)
            floors += 1
        else:
            result[arm] = Look(
                _COLOURS[others % len(_COLOURS)],
                _MARKERS[others % len(_MARKERS)],
                _LINES[others % len(_LINES)],
                arm not in hollow,
            )
            others += 1
    return result
