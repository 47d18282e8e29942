"""The oracle says what it is said to say, and shows it only where it should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from dflash.model.errors import UserError
from dflash.target import TapRecorder
from dflash.target.oracle import OracleDesign, OracleTarget


@pytest.fixture(scope="module")
def oracle() -> OracleTarget:
    return OracleTarget()


def rows_of(
    oracle: OracleTarget, count: int = 96, length: int = 26, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return oracle.design.training_rows(count, length, 4, generator)


def keys_of(oracle: OracleTarget, rows: Tensor) -> Tensor:
    """``[N, T]``, token by token, as the docstring defines the key."""
    design, keys = oracle.design, []
    for row in rows.tolist():
        key, trail = 0, []
        for t, token in enumerate(row):
            if token >= design.first_key_id:
                key = token - design.first_key_id
            elif row[t - 1] < design.symbols:
                step = (token - row[t - 1]) % design.symbols
                if step not in range(1, 2 * design.keys, 2):
                    key = (key + 1 + step // 2 % (design.keys - 1)) % design.keys
            trail.append(key)
        keys.append(trail)
    return torch.tensor(keys)


@pytest.mark.parametrize("key", range(4))
def test_generates_the_closed_form(oracle: OracleTarget, key: int) -> None:
    prompt = torch.tensor([oracle.design.prompt(key, first=11)])
    output = oracle.model.generate(prompt, max_new_tokens=40, do_sample=False)
    assert output[0, 2:].tolist() == oracle.design.answer(key, 11, 40)


def test_next_token_follows_the_key_also_after_surprises(oracle: OracleTarget) -> None:
    rows, anchors = rows_of(oracle)
    design = oracle.design
    expected = (rows + 2 * keys_of(oracle, rows) + 1) % design.symbols
    logits = oracle.model(rows).logits
    assert torch.equal(logits.argmax(-1)[:, 1:], expected[:, 1:])
    top = logits.topk(2, dim=-1).values
    assert (top[..., 0] - top[..., 1]).min() > 8  # a wide margin, in any precision
    # Away from anchors training rows are the target's own text, so their labels are certain.
    chosen = torch.ones_like(rows, dtype=torch.bool).scatter(1, anchors, False)[:, 2:]
    assert torch.equal(rows[:, 2:][chosen], expected[:, 1:-1][chosen])
    surprised = (rows[:, 2:] != expected[:, 1:-1])[~chosen].float().mean()
    assert 0.1 < surprised < 0.3


def test_cache_and_crop_change_nothing(oracle: OracleTarget) -> None:
    rows = rows_of(oracle)[0][:3]
    taps = (oracle.design.tap,)
    whole = oracle.model(rows, use_cache=False).logits
    cache = DynamicCache(config=oracle.model.config)
    with TapRecorder(oracle.model, taps) as recorder:
        oracle.model(rows[:, :9], cache=cache, use_cache=True)
        oracle.model(torch.zeros(3, 5, dtype=torch.long), cache=cache, use_cache=True)
        cache.crop(-5)
        step = oracle.model(rows[:, 9:14], cache=cache, use_cache=True).logits
        assert torch.equal(recorder.features(), oracle.features(rows, taps)[:, 9:14])
    assert torch.equal(step, whole[:, 9:14])


def test_is_a_small_frozen_target(oracle: OracleTarget) -> None:
    assert sum(parameter.numel() for parameter in oracle.model.parameters()) < 1e6
    assert not any(parameter.requires_grad for parameter in oracle.model.parameters())
    assert oracle.head.weight.data_ptr() == oracle.embedding.weight.data_ptr()
    assert oracle.fingerprint != OracleTarget(OracleDesign(seed=1)).fingerprint
    assert oracle.template_hash == "none"
    with pytest.raises(UserError, match="tokenizer"):
        oracle.encode_chat([{"role": "user", "content": "1"}])


def shown_codes(oracle: OracleTarget, rows: Tensor) -> Tensor:
    """``[N, T]`` the key that a feature at a symbol shows."""
    keys = oracle.design.keys
    return (keys_of(oracle, rows) + keys // 2 * (rows % 2)) % keys


def probe_accuracy(features: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Ridge regression from ``[N, H]`` features to one-hot labels, accuracy on other rows."""
    fitted, tested = (
        torch.nn.functional.pad(x.double(), (0, 1), value=1.0) for x in (features, test)
    )
    ridge = torch.eye(fitted.shape[1], dtype=torch.float64)
    wanted = fitted.T @ torch.nn.functional.one_hot(labels).double()
    weights = torch.linalg.solve(fitted.T @ fitted + ridge, wanted)
    return float(((tested @ weights).argmax(-1) == test_labels).float().mean())


@pytest.mark.parametrize("layer", range(5))
def test_only_the_tapped_layer_shows_the_key(oracle: OracleTarget, layer: int) -> None:
    rows = rows_of(oracle, 300)[0]
    features = oracle.features(rows, (layer,))[:, 2:]
    labels = shown_codes(oracle, rows)[:, 2:]
    accuracy = probe_accuracy(
        features[:150].flatten(0, 1),
        labels[:150].flatten(),
        features[150:].flatten(0, 1),
        labels[150:].flatten(),
    )
    if layer == oracle.design.tap:
        assert accuracy == 1.0
    else:
        assert accuracy < 0.4  # chance is a quarter


def test_the_anchors_feature_says_more_than_those_before(oracle: OracleTarget) -> None:
    rows, anchors = rows_of(oracle)
    keys = keys_of(oracle, rows)
    # Steps of training rows are odd, so parity alternates also at surprises.
    assert ((rows[:, 2:] - rows[:, 1:-1]) % 2 == 1).all()
    stale = keys.gather(1, anchors) != keys.gather(1, anchors - 1)
    assert 0.1 < stale.float().mean() < 0.3
    # Nothing but the anchor's own feature tells the two kinds of anchors apart.
    parity = rows.gather(1, anchors) % 2
    assert 0.4 < parity[stale].float().mean() < 0.6


def test_neighbouring_features_name_different_keys(oracle: OracleTarget) -> None:
    row = torch.tensor([oracle.design.prompt(1, 4) + oracle.design.answer(1, 4, 20)])
    shown = shown_codes(oracle, row)[0, 1:]
    assert set(shown[::2].tolist()) == {1}
    assert set(shown[1::2].tolist()) == {3}
    feature = oracle.features(row, (oracle.design.tap,))[0, 1:]
    feature = feature[:, oracle.design.symbols : -oracle.design.hash_bits]
    assert torch.equal(feature[0::2], feature[:1].expand(10 + 1, -1))
    assert not torch.equal(feature[0], feature[1])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_what_is_said(oracle: OracleTarget, side: str) -> None:
    row = rows_of(oracle)[0][:1, :12]
    pad = torch.full((1, 5), oracle.design.pad_token_id)
    padded = torch.cat([pad, row] if side == "left" else [row, pad], dim=1)
    logits = oracle.model(padded).logits
    kept = logits[:, 5:] if side == "left" else logits[:, :12]
    assert torch.equal(kept, oracle.model(row).logits)


def test_bfloat16_says_the_same() -> None:
    oracle = OracleTarget()
    rows = rows_of(oracle)[0]
    expected = oracle.model(rows).logits.argmax(-1)
    assert torch.equal(oracle.model.bfloat16()(rows).logits.argmax(-1), expected)


@pytest.mark.parametrize(
    "sizes", [{"symbols": 24}, {"symbols": 8}, {"keys": 3}, {"keys": 10}, {"tap": 0}, {"tap": 3}]
)
def test_impossible_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(UserError, match="oracle"):
        OracleDesign(**sizes)
