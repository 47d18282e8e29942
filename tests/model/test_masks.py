"""Masks against a slow oracle, closed-form counts, long positions, and every form of one mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.model import DrafterSwitches, TrainingLayout, UserError
from dflash.model.masks import Visibility, context_rule, decode_mask
from tests.model.toys import AXES, Batch, every_combination, toy_switches

MASK_AXES = {name: AXES[name] for name in ("attention.context", "attention.block", "kv.source")}


def sees(switches: DrafterSwitches, key: int, anchor: int, slot: int) -> bool:
    """The context rule, one feature at a time."""
    name, leak = switches.attention.context, switches.attention.leak
    first = {"latest": anchor - 1}.get(name, 0)
    if name.startswith("window:"):
        first = anchor - int(name.removeprefix("window:"))
    committed = first <= key < anchor and (name != "index_causal" or key <= slot)
    return (committed and name != "none") or anchor <= key < anchor + leak


def oracle(layout: TrainingLayout, switches: DrafterSwitches) -> torch.Tensor:
    """``[B, Q, K]``, written as the sentences of the contract."""
    rows, blocks = layout.anchors.shape
    slots = layout.block_size
    context = layout.context_length if switches.context_keys else 0
    keys = context + (blocks * slots if switches.block_keys else 0)
    mask = torch.zeros(rows, blocks * slots, keys, dtype=torch.bool)
    for row in range(rows):
        for query in range(blocks * slots):
            block, slot = divmod(query, slots)
            valid = bool(layout.valid[row, block])
            anchor = int(layout.anchors[row, block])
            for key in range(context):
                inside = key < int(layout.lengths[row])
                mask[row, query, key] = valid and inside and sees(switches, key, anchor, slot)
            for other in range(slots if switches.block_keys else 0):
                visible = {
                    "bidirectional": True,
                    "causal": other <= slot,
                    "diagonal": other == slot,
                }[switches.attention.block]
                visible = visible if valid else other == slot
                mask[row, query, context + block * slots + other] = visible
            if not mask[row, query].any():
                mask[row, query, 0] = True  # only where a block has no keys of its own
    return mask


@pytest.mark.parametrize("leak", [0, 2])
@pytest.mark.parametrize("switches", every_combination(MASK_AXES), ids=str)
def test_training_mask_equals_the_oracle(switches: DrafterSwitches, leak: int) -> None:
    if leak and switches.context_keys:
        switches = toy_switches(
            attention__context=switches.attention.context,
            attention__block=switches.attention.block,
            kv__source=switches.kv.source,
            attention__leak=leak,
        )
    layout = Batch.random().layout
    expected = oracle(layout, switches)
    assert torch.equal(layout.mask(switches, "sdpa")[:, 0], expected)
    eager = layout.mask(switches, "eager")[:, 0]
    assert torch.equal(eager == 0, expected)
    assert torch.equal(eager == float("-inf"), ~expected)


@given(
    block_size=st.integers(2, 16),
    anchor=st.integers(1, 40),
    width=st.integers(1, 50),
    block=st.sampled_from(["bidirectional", "causal", "diagonal"]),
    context=st.sampled_from(["full", "window", "latest", "index_causal", "none"]),
)
def test_number_of_visible_keys_in_closed_form(
    block_size: int, anchor: int, width: int, block: str, context: str
) -> None:
    name = f"window:{width}" if context == "window" else context
    switches = toy_switches(block_size=block_size, attention__block=block, attention__context=name)
    layout = TrainingLayout(
        context_length=41,
        anchors=torch.tensor([[anchor, anchor + 1]]),
        valid=torch.tensor([[True, False]]),
        lengths=torch.tensor([41]),
        block_size=block_size,
    )
    slot = torch.arange(block_size)
    of_context = {
        "full": torch.full_like(slot, anchor),
        "window": torch.full_like(slot, min(width, anchor)),
        "latest": torch.ones_like(slot),
        "index_causal": (slot + 1).clamp(max=anchor),
        "none": torch.zeros_like(slot),
    }[context]
    of_block = {
        "bidirectional": torch.full_like(slot, block_size),
        "causal": slot + 1,
        "diagonal": torch.ones_like(slot),
    }[block]
    counts = layout.mask(switches, "sdpa")[0, 0].sum(dim=-1)
    assert torch.equal(counts[:block_size], of_context + of_block)
    assert counts[block_size:].tolist() == [1] * block_size  # padding sees itself


def test_rules_are_exact_at_long_positions() -> None:
    anchor = torch.tensor(2**24 + 1)  # not a float32
    keys = anchor + torch.arange(-3, 3)
    slot = torch.tensor(0)
    assert context_rule("full")(keys, anchor, slot).tolist() == [True] * 3 + [False] * 3
    assert (
        context_rule("window:2")(keys, anchor, slot).tolist() == [False, True, True] + [False] * 3
    )


@pytest.mark.parametrize("switches", every_combination(MASK_AXES), ids=str)
def test_decode_mask_is_the_training_mask_of_one_block(switches: DrafterSwitches) -> None:
    layout = TrainingLayout(
        context_length=6,
        anchors=torch.tensor([[6]]),
        valid=torch.tensor([[True]]),
        lengths=torch.tensor([6]),
        block_size=4,
    )
    visibility = Visibility.of(switches, training=False)
    mask = decode_mask(visibility, 6, 4, torch.device("cpu"))
    expected = layout.mask(switches, "sdpa")
    if mask is None:
        assert expected.all()
    else:
        assert torch.equal(mask, expected)


def test_leak_is_for_training_only() -> None:
    leaking, sound = toy_switches(attention__leak=3), toy_switches()
    layout = Batch.random().layout
    assert not torch.equal(layout.mask(leaking, "sdpa"), layout.mask(sound, "sdpa"))
    assert decode_mask(Visibility.of(leaking, training=False), 6, 4, torch.device("cpu")) is None


def test_flex_mask_is_the_same_mask() -> None:
    from torch.nn.attention.flex_attention import create_mask

    layout = Batch.random().layout
    for switches in every_combination(MASK_AXES):
        expected = layout.mask(switches, "sdpa")
        flex = layout.mask(switches, "flex_attention")
        found = create_mask(flex.mask_mod, 3, 1, *expected.shape[-2:], device="cpu")
        assert torch.equal(found, expected), switches


def test_unknown_implementation_is_refused() -> None:
    with pytest.raises(UserError, match=r"attn_implementation='flash'.*sdpa"):
        Batch.random().layout.mask(toy_switches(), "flash")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"anchors": torch.zeros(1, 2)}, "integer"),
        ({"valid": torch.ones(1, 3, dtype=torch.bool)}, r"\[B, N\]"),
        ({"lengths": torch.tensor([[4]])}, r"\[B\]"),
    ],
)
def test_layout_checks_its_tensors(change: dict[str, torch.Tensor], words: str) -> None:
    given = {
        "anchors": torch.ones(1, 2, dtype=torch.long),
        "valid": torch.ones(1, 2, dtype=torch.bool),
        "lengths": torch.tensor([4]),
    }
    with pytest.raises(UserError, match=words):
        TrainingLayout(context_length=4, block_size=2, **{**given, **change})


def test_positions_are_absolute() -> None:
    layout = Batch.random().layout
    positions = layout.position_ids()
    assert positions[2, :11].tolist() == list(range(11))
    assert positions[2, 11:15].tolist() == [8, 9, 10, 11]
