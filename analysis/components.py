"""Which components of the drafter a switch touches, and whether training ever moved them.

A component that kept its starting values was not trained: the comparison then says nothing about
it, however many prompts it rests on (design §6).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import pandas as pd

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
NORMS = ("q_norm", "k_norm")
FUSION = ("fc", "hidden_norm")
CONTEXT = ("k_proj_context", "v_proj_context")
LAYERS = "layers."  # stands for every layer

# Switch, or the section it is in -> components; the longest name that fits counts. Components carry
# the names of the drafter's modules; one that a drafter lacks is not looked for.
TOUCHES: dict[str, tuple[str, ...]] = {
    "drafter.num_layers": (LAYERS,),
    "drafter.block_size": (LAYERS,),
    "drafter.mlp_size": ("mlp",),
    "drafter.attention.block": ATTENTION,
    "drafter.attention.context": (*ATTENTION, *CONTEXT, *FUSION),
    "drafter.attention.leak": (*ATTENTION, *CONTEXT, *FUSION),
    "drafter.attention.qk_norm": NORMS,
    "drafter.attention.qk_norm_place": NORMS,
    "drafter.kv.source": ("k_proj", "v_proj", *CONTEXT, *FUSION),
    "drafter.kv.projection": ("k_proj", "v_proj", *CONTEXT),
    "drafter.kv.fusion": FUSION,
    "drafter.features.taps": ("fc",),
    "drafter.features.norm": ("hidden_norm",),
    "drafter.rope.context": ("q_proj", "k_proj", "k_proj_context"),
    "drafter.mask_embedding": ("mask_embed",),
    "drafter.vocab": (LAYERS,),
    "drafter": (LAYERS,),
    "target": (LAYERS,),
    "data": (LAYERS,),
    "train": (LAYERS,),
    "decode": (),  # nothing that is trained
}


def touched(switches: Iterable[str]) -> tuple[str, ...]:
    """Components that a patch of these dotted names is about, each once."""
    names = [component for switch in switches for component in _touches(switch)]
    return tuple(dict.fromkeys(names))


def _touches(switch: str) -> tuple[str, ...]:
    while switch and switch not in TOUCHES:
        switch = switch.rpartition(".")[0]
    return TOUCHES.get(switch, (LAYERS,))


def moves(runs: pd.DataFrame) -> dict[str, float]:
    """Component -> its smallest `moved` over the runs that succeeded; a run without it does not
    count.
    """
    least: dict[str, float] = {}
    for text in runs.loc[runs["status"] == "ok", "moved"]:
        for component, move in json.loads(text or "{}").items():
            least[component] = min(least.get(component, move), move)
    return least


def switches(arm: pd.DataFrame) -> tuple[str, ...]:
    """Dotted names in which an arm differs from its control; rows of `runs`."""
    return tuple(json.loads(arm["config_diff"].iloc[0] or "{}"))


def frozen(arm: pd.DataFrame, control: pd.DataFrame, about: Iterable[str]) -> str:
    """What a comparison is about and never moved, in words; empty when there is no such component.

    arm, control: rows of `runs`, of several arms for a contrast of a grid. about: the switches
    compared. A component they touch must have moved in every run of the control, or of the arm
    where the control has no such component. (One that both have may lie idle in the arm: that can
    be what the patch does.)
    """
    components = touched(about)
    known = moves(control)
    extra = {name: move for name, move in moves(arm).items() if name not in known}
    other = "the arm" if arm["arm"].nunique() == 1 else "an arm"
    places = {"the control": _unmoved(known, components), other: _unmoved(extra, components)}
    return "; ".join(
        f"{', '.join(names)} never moved in {place}" for place, names in places.items() if names
    )


def _unmoved(moved: Mapping[str, float], components: tuple[str, ...]) -> list[str]:
    return sorted(
        name
        for name, move in moved.items()
        if move == 0 and (name in components or (name.startswith(LAYERS) and LAYERS in components))
    )
