"""The training layout and the cached decode path are one function (design §6)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dflash.model import (
    DFlashDraftModel,
    DrafterSwitches,
    TrainingLayout,
    UserError,
    crop_to,
    new_cache,
)
from tests.model.toys import (
    AXES,
    HIDDEN,
    Batch,
    every_combination,
    pairwise_combinations,
    toy_drafter,
    toy_switches,
    training_forward,
)

ANCHORS = (2, 5, 6, 11)  # one decode step each; 1 to 5 tokens are committed in between
# How a head is made does not touch who it sees, so each group is covered in full and the product
# of the two by rotation: every combination of the first meets three of the second's.
SEEING = ("attention.context", "attention.block", "kv.source", "kv.fusion")
MAKING = ("kv.projection", "attention.qk_norm", "attention.qk_norm_place", "rope.context")


def batch_of_one_row(block_size: int = 4) -> Batch:
    batch = Batch.random(block_size)
    layout = TrainingLayout(
        context_length=11,
        anchors=torch.tensor([ANCHORS]).clamp(max=10),
        valid=torch.ones(1, len(ANCHORS), dtype=torch.bool),
        lengths=torch.tensor([11]),
        block_size=block_size,
    )
    return Batch(layout, batch.token_ids[:1], batch.features[:1], batch.embedding)


def decode(draft: DFlashDraftModel, batch: Batch) -> Tensor:
    """The same blocks by cached steps, ``[1, N, slots, H]``."""
    cache, committed, steps = new_cache(), 0, []
    context = draft.context_of(batch.token_ids, batch.features, batch.embedding)
    for anchor in batch.layout.anchors[0].tolist():
        steps.append(
            draft(
                position_ids=torch.arange(committed, anchor + draft.block_size)[None],
                noise_embedding=draft.embed_block(batch.token_ids[:, anchor], batch.embedding),
                target_hidden=context[:, committed:anchor],
                past_key_values=cache,
                use_cache=True,
            )
        )
        committed = anchor
        crop_to(cache, committed)
        assert cache.get_seq_length() == (committed if draft.switches.context_keys else 0)
    return torch.stack(steps, dim=1)


def assert_same(switches: DrafterSwitches) -> None:
    draft, batch = toy_drafter(switches), batch_of_one_row(switches.block_size)
    with torch.no_grad():
        trained, decoded = training_forward(draft, batch), decode(draft, batch)
    assert torch.allclose(trained, decoded, atol=1e-5), (trained - decoded).abs().max()


def rotated() -> list[DrafterSwitches]:
    seeing = every_combination({name: AXES[name] for name in SEEING})
    making = every_combination({name: AXES[name] for name in MAKING})
    return [
        toy_switches(
            num_layers=1,
            attention__context=one.attention.context,
            attention__block=one.attention.block,
            kv__source=one.kv.source,
            kv__fusion=one.kv.fusion,
            kv__projection=other.kv.projection,
            attention__qk_norm=other.attention.qk_norm,
            attention__qk_norm_place=other.attention.qk_norm_place,
            rope__context=other.rope.context,
        )
        for index, one in enumerate(seeing)
        for other in (making[(3 * index + turn) % len(making)] for turn in range(3))
    ]


@pytest.mark.parametrize("part", range(4))
def test_training_equals_decode_for_every_way_of_seeing(part: int) -> None:
    for switches in rotated()[part::4]:
        assert_same(switches)


def test_training_equals_decode_pairwise() -> None:
    for switches in pairwise_combinations(AXES):
        assert_same(switches)


@pytest.mark.parametrize("mask_embedding", ["reserved", "learned", "mean", "zero"])
@pytest.mark.parametrize("block_size", [2, 7])
def test_training_equals_decode_for_mask_embeddings(mask_embedding: str, block_size: int) -> None:
    assert_same(toy_switches(mask_embedding=mask_embedding, block_size=block_size))


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "blocks"])
@pytest.mark.parametrize(
    "dotted", [{}, {"attention__context": "window:3"}, {"attention__block": "causal"}]
)
def test_decode_is_the_same_in_every_implementation(implementation: str, dotted: dict) -> None:
    draft, batch = toy_drafter(toy_switches(**dotted)), batch_of_one_row()
    with torch.no_grad():
        trained = training_forward(draft, batch)
        draft.config._attn_implementation = implementation
        assert torch.allclose(trained, decode(draft, batch), atol=1e-5)


@pytest.mark.parametrize("prefix", range(1, 11))
def test_cache_equals_recomputing_everything(prefix: int) -> None:
    draft, batch = toy_drafter(toy_switches()), batch_of_one_row()
    noise = draft.embed_block(batch.token_ids[:, 10], batch.embedding)
    with torch.no_grad():
        cache = new_cache()
        for start, stop in ((0, prefix), (prefix, 10)):
            cached = draft(
                position_ids=torch.arange(start, stop + 4)[None],
                noise_embedding=noise,
                target_hidden=batch.features[:, start:stop],
                past_key_values=cache,
            )
            crop_to(cache, stop)
        fresh = draft(torch.arange(14)[None], None, noise, batch.features[:, :10])
    assert torch.allclose(cached, fresh, atol=1e-5)


def test_positions_of_the_block_alone_put_the_context_before_it() -> None:
    draft, batch = toy_drafter(toy_switches()), batch_of_one_row()
    noise, features = torch.randn(1, 4, HIDDEN), batch.features[:, :6]
    whole = draft(torch.arange(10)[None], None, noise, features)
    assert torch.equal(whole, draft(torch.arange(6, 10)[None], None, noise, features))


def test_fused_features_are_taken_as_they_are() -> None:
    draft, batch = toy_drafter(toy_switches()), batch_of_one_row()
    noise, positions = torch.randn(1, 4, HIDDEN), torch.arange(15)[None]
    fused = draft.hidden_norm(draft.fc(batch.features))
    raw = draft(positions, None, noise, batch.features)
    assert torch.equal(raw, draft(positions, None, noise, fused))


def test_bad_inputs_name_themselves() -> None:
    draft = toy_drafter(toy_switches())
    noise, features = torch.randn(1, 4, HIDDEN), torch.randn(1, 6, 5 * HIDDEN)
    with pytest.raises(UserError, match="noise_embedding"):
        draft(torch.arange(10)[None], None, None, features)
    with pytest.raises(UserError, match=r"position_ids\.shape\[1\]=9.*4 or 10"):
        draft(torch.arange(9)[None], None, noise, features)
    with pytest.raises(UserError, match=r"target_hidden\.shape\[-1\]=7"):
        draft(torch.arange(10)[None], None, noise, features[..., :7])
    with pytest.raises(UserError, match="without an attention_mask"):
        draft(torch.arange(14)[None], None, torch.randn(1, 8, HIDDEN), features)
    only_target = toy_drafter(toy_switches(kv__source="target"))
    with pytest.raises(UserError, match=r"target_hidden=None.*kv\.source=target"):
        only_target(torch.arange(4)[None], None, noise)
