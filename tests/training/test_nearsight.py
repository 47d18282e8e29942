from __future__ import annotations

import pytest
import torch

from dflash.model import DFlashDraftModel, drafter_config
from dflash.training.nearsight import SHARPNESS, least_norm, nearsighted, rotary_channels
from tests.data.toys import MASK
from tests.training.toys import switches, toy


def test_least_norm_solves_with_the_shortest_vector():
    vectors = [torch.randn(12) for _ in range(3)]
    values = [1.0, 0.0, -2.0]
    found = least_norm(vectors, values)
    products = torch.stack([found @ vector for vector in vectors])
    torch.testing.assert_close(products, torch.tensor(values), atol=1e-5, rtol=1e-5)
    span = torch.linalg.qr(torch.stack(vectors).T)[0]  # the shortest one lies in their span
    torch.testing.assert_close(span @ (span.T @ found), found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head_dim", [2, 8, 64])
def test_channels_have_the_size_a_norm_would_give(head_dim):
    channels = rotary_channels(head_dim, SHARPNESS)
    assert channels.norm().item() == pytest.approx((SHARPNESS * head_dim) ** 0.5)
    assert not channels[head_dim // 2 :].any()  # one channel of every pair


@pytest.mark.parametrize("qk_norm", ["both", "none"])
def test_a_mask_slot_starts_on_the_latest_of_equal_features(qk_norm):
    target = toy()
    chosen = switches(attention={"qk_norm": qk_norm})
    config = drafter_config(target.model.config, chosen, MASK)
    config.head_dim = 64
    config._attn_implementation = "eager"
    drafter = DFlashDraftModel(config)
    mask, anchor, feature = torch.randn(3, config.hidden_size)
    nearsighted(drafter.layers[0], mask, anchor, feature)
    context, slots = 40, 4
    block = torch.stack([anchor, *[mask] * (slots - 1)])[None]  # [1, slots, H]
    rotary = drafter.rotary_emb(block, torch.arange(context + slots)[None])
    with torch.no_grad():
        _, weights = drafter.layers[0].self_attn(block, feature.expand(1, context, -1), rotary)
    seen = weights[0, :, 1, :context].mean(0)  # [C], over heads
    assert seen[-4:].sum() > 10 * seen[-8:-4].sum()
    assert seen[-4:].sum() > 10 * seen[:-8].sum()
