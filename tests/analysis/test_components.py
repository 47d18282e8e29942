"""Which components an arm is about, and when a verdict on it must be refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from analysis.components import TOUCHES, frozen, moves, switches, touched
from dflash.lab.config import valid_names


def runs(*moved: dict[str, float], switch: str = "", failed: int = 0) -> pd.DataFrame:
    """One run per dictionary of moves, then some that failed."""
    rows = [{"status": "ok", "moved": json.dumps(move)} for move in moved]
    rows += [{"status": "failed", "moved": "{}"}] * failed
    diff = {switch: ["a", "b"]} if switch else {}
    return pd.DataFrame(rows).assign(arm="arm", config_diff=json.dumps(diff))


def test_every_switch_of_the_drafter_says_what_it_touches() -> None:
    names = {name for name in valid_names() if name.startswith("drafter.")}
    assert names == {name for name in TOUCHES if name.startswith("drafter.")}
    assert all(touched([name]) for name in names)


def test_components_are_modules_of_some_drafter() -> None:
    import torch
    from transformers import Qwen3Config

    from dflash.model import DFlashDraftModel, drafter_config
    from dflash.model.switches import DrafterSwitches, KVSwitches
    from dflash.training.moves import components_of

    switches = DrafterSwitches(
        num_layers=1, mask_embedding="learned", kv=KVSwitches(projection="separate")
    )
    target = Qwen3Config(hidden_size=8, num_hidden_layers=12, num_attention_heads=2, vocab_size=9)
    with torch.device("meta"):
        drafter = DFlashDraftModel(drafter_config(target, switches, None))
    real = {part for name, _ in drafter.named_parameters() for part in components_of(name)}
    named = {component for components in TOUCHES.values() for component in components}
    assert named - real == {"layers."}


def test_a_section_speaks_for_its_switches() -> None:
    assert touched(["train.loss.position"]) == ("layers.",)
    assert touched(["decode.width"]) == ()
    assert touched(["drafter.kv.fusion", "drafter.features.norm"]) == ("fc", "hidden_norm")


def test_the_run_that_moved_least_counts() -> None:
    several = runs({"q_norm": 0.3, "fc": 0.1}, {"q_norm": 0.2}, failed=1)
    assert moves(several) == {"q_norm": 0.2, "fc": 0.1}


@pytest.mark.parametrize(
    ("switch", "control", "arm", "words"),
    [
        ("drafter.attention.qk_norm", {"q_norm": 0.1, "k_norm": 0.0}, {}, "k_norm|control"),
        ("drafter.attention.qk_norm", {"q_norm": 0.1}, {"q_norm": 0.0}, ""),  # idle by design
        ("drafter.attention.qk_norm", {"fc": 0.0}, {}, ""),  # not what the arm is about
        ("drafter.mask_embedding", {"fc": 0.1}, {"fc": 0.1, "mask_embed": 0.0}, "mask_embed|arm"),
        ("drafter.num_layers", {"layers.0": 0.1}, {"layers.1": 0.0}, "layers.1|arm"),
        ("drafter.num_layers", {"layers.0": 0.0}, {"layers.0": 0.1}, "layers.0|control"),
        ("train.lr", {"layers.0": 0.1, "q_norm": 0.0}, {"layers.0": 0.1}, ""),
        ("decode.width", {"layers.0": 0.0}, {}, ""),
        ("drafter.attention.qk_norm", {}, {}, ""),
    ],
)  # fmt: skip
def test_frozen(switch: str, control: dict, arm: dict, words: str) -> None:
    component, _, place = words.partition("|")
    expected = f"{component} never moved in the {place}" if words else ""
    assert frozen(runs(arm), runs({**control}, {**control}), [switch]) == expected
    assert switches(runs(arm, switch=switch)) == (switch,)


def test_all_that_failed_leaves_nothing_to_judge() -> None:
    assert frozen(runs(failed=2), runs(failed=1), ["drafter.vocab"]) == ""
