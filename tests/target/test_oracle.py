"""The oracle says what it is said to say, and shows it only where it should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from dflash.model.errors import UserError
from dflash.target import TapRecorder
from dflash.target.oracle import OPEN, OracleDesign, OracleTarget


@pytest.fixture(scope="module")
def oracle() -> OracleTarget:
    return OracleTarget()


@pytest.fixture(scope="module")
def rows(oracle: OracleTarget) -> tuple[Tensor, Tensor]:
    """Training rows ``[300, 26]`` and their anchors."""
    return oracle.design.training_rows(300, 26, 4, torch.Generator().manual_seed(0))


def keys_of(design: OracleDesign, rows: Tensor) -> Tensor:
    """``[N, T]``, token by token, as the docstring defines the key."""
    keys = []
    for row in rows.tolist():
        key, trail = 0, []
        for t, token in enumerate(row):
            if token >= design.first_key_id:
                key = (token - design.first_key_id) % design.keys
            elif row[t - 1] < design.symbols:
                step = (token % design.counts - row[t - 1] % design.counts) % design.counts
                if step not in range(1, 2 * design.keys, 2):
                    key = (key + 1 + step // 2 % (design.keys - 1)) % design.keys
            trail.append(key)
        keys.append(trail)
    return torch.tensor(keys)


@pytest.mark.parametrize("key", range(4))
def test_generates_the_answer_it_announces(oracle: OracleTarget, key: int) -> None:
    design = oracle.design
    prompt = torch.tensor([design.prompt(key, first=11)])
    output = oracle.model.generate(prompt, max_new_tokens=40, do_sample=False)[0, 2:]
    assert output.tolist() == design.answer(key, 11, 40)
    expected = [(11 + (2 * key + 1) * (j + 1)) % design.counts for j in range(40)]
    assert (output % design.counts).tolist() == expected


def test_counts_follow_the_key_also_after_surprises(
    oracle: OracleTarget, rows: tuple[Tensor, Tensor]
) -> None:
    tokens, anchors = rows
    counts = oracle.design.counts
    logits = oracle.model(tokens).logits
    says = logits.argmax(-1)
    expected = (tokens + 2 * keys_of(oracle.design, tokens) + 1) % counts
    assert torch.equal(says[:, 1:] % counts, expected[:, 1:])
    top = logits.topk(2, dim=-1).values
    assert (top[..., 0] - top[..., 1]).min() > 4  # a wide margin, in any precision
    # Away from anchors training rows are the target's own text, so their labels are certain.
    own = torch.ones_like(tokens, dtype=torch.bool).scatter(1, anchors, False)[:, 2:]
    assert torch.equal(tokens[:, 2:][own], says[:, 1:-1][own])
    surprised = (tokens[:, 2:] != says[:, 1:-1])[~own].float().mean()
    assert 0.1 < surprised < 0.3


def test_digits_are_shown_ahead_and_independent(
    oracle: OracleTarget, rows: tuple[Tensor, Tensor]
) -> None:
    design, tokens = oracle.design, rows[0]
    digit = tokens // design.counts
    shown = design.read(tokens).shown_digit
    distance = design.ahead + 1
    assert torch.equal(shown[:, :-distance], digit[:, distance:])
    for wrong in (distance - 1, distance + 1):
        start = max(0, distance + 1 - wrong)
        agreed = shown[:, start : 26 - wrong] == digit[:, start + wrong :]
        assert agreed.float().mean() < 0.3  # a guess among four


def test_cache_and_crop_change_nothing(oracle: OracleTarget, rows: tuple[Tensor, Tensor]) -> None:
    tokens, taps = rows[0][:3], (oracle.design.tap,)
    whole = oracle.model(tokens, use_cache=False).logits
    cache = DynamicCache(config=oracle.model.config)
    with TapRecorder(oracle.model, taps) as recorder:
        oracle.model(tokens[:, :9], cache=cache, use_cache=True)
        oracle.model(torch.zeros(3, 5, dtype=torch.long), cache=cache, use_cache=True)
        cache.crop(-5)
        step = oracle.model(tokens[:, 9:14], cache=cache, use_cache=True).logits
        assert torch.equal(recorder.features(), oracle.features(tokens, taps)[:, 9:14])
    assert torch.equal(step, whole[:, 9:14])


def test_is_a_small_frozen_target(oracle: OracleTarget) -> None:
    assert sum(parameter.numel() for parameter in oracle.model.parameters()) < 1e6
    assert not any(parameter.requires_grad for parameter in oracle.model.parameters())
    assert oracle.head.weight.data_ptr() == oracle.embedding.weight.data_ptr()
    assert oracle.fingerprint != OracleTarget(OracleDesign(seed=1)).fingerprint
    assert oracle.template_hash == "none"
    with pytest.raises(UserError, match="tokenizer"):
        oracle.encode_chat([{"role": "user", "content": "1"}])


def probe_accuracy(features: Tensor, labels: Tensor) -> float:
    """Ridge regression to one-hot labels on half of the rows, accuracy on the others."""
    inputs = torch.nn.functional.pad(features.double(), (0, 1), value=1.0)
    half = len(inputs) // 2
    fitted, tested = inputs[:half].flatten(0, 1), inputs[half:].flatten(0, 1)
    wanted = fitted.T @ torch.nn.functional.one_hot(labels[:half].flatten()).double()
    ridge = torch.eye(fitted.shape[1], dtype=torch.float64)
    guesses = tested @ torch.linalg.solve(fitted.T @ fitted + ridge, wanted)
    return float((guesses.argmax(-1) == labels[half:].flatten()).double().mean())


@pytest.mark.parametrize("layer", range(5))
@pytest.mark.parametrize("what", ["shown_key", "shown_digit"])
def test_only_the_tapped_layer_shows_key_and_digit(
    oracle: OracleTarget, rows: tuple[Tensor, Tensor], layer: int, what: str
) -> None:
    features = oracle.features(rows[0], (layer,))[:, 2:]
    accuracy = probe_accuracy(features, getattr(oracle.design.read(rows[0]), what)[:, 2:])
    if layer == oracle.design.tap:
        assert accuracy == 1.0
    else:
        assert accuracy < 0.35  # chance is a quarter


def test_the_first_token_gives_nothing_away(oracle: OracleTarget) -> None:
    # Training and decoding share no key token, so what a first feature meant is of no use later.
    rows = oracle.design.training_rows(500, 10, 4, torch.Generator().manual_seed(3))[0]
    prompts = [oracle.design.prompt(k, f)[0] for k in range(4) for f in range(64)]
    assert set(rows[:, 0].tolist()).isdisjoint(prompts)
    assert len(set(prompts)) > 100


def test_the_anchors_feature_says_more_than_those_before(
    oracle: OracleTarget, rows: tuple[Tensor, Tensor]
) -> None:
    tokens, anchors = rows
    keys = keys_of(oracle.design, tokens)
    # Steps of training rows are odd, so parity alternates also at surprises.
    assert ((tokens[:, 2:] - tokens[:, 1:-1]) % 2 == 1).all()
    stale = keys.gather(1, anchors) != keys.gather(1, anchors - 1)
    assert 0.1 < stale.float().mean() < 0.3
    # The anchor's symbol does not tell the two kinds of anchors apart.
    parity = tokens.gather(1, anchors) % 2
    assert 0.4 < parity[stale].float().mean() < 0.6


def test_neighbouring_features_name_different_keys(oracle: OracleTarget) -> None:
    design = oracle.design
    row = torch.tensor([design.prompt(1, 4) + design.answer(1, 4, 20)])
    shown = design.read(row).shown_key[0]
    assert shown[0] == design.keys  # a key token names none
    assert set(shown[1::2].tolist()) == {1}
    assert set(shown[2::2].tolist()) == {3}
    feature = oracle.features(row, (design.tap,))[0, :, OPEN][:, :8]
    assert torch.equal(feature[1::2], feature[1:2].expand(11, -1))
    assert not torch.equal(feature[1], feature[2])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_what_is_said(
    oracle: OracleTarget, rows: tuple[Tensor, Tensor], side: str
) -> None:
    row = rows[0][:1, :12]
    extra = (5, 0) if side == "left" else (0, 5)
    padded = torch.nn.functional.pad(row, extra, value=oracle.design.pad_token_id)
    logits = oracle.model(padded).logits
    kept = logits[:, 5:] if side == "left" else logits[:, :12]
    assert torch.equal(kept, oracle.model(row).logits)


def test_bfloat16_says_the_same(rows: tuple[Tensor, Tensor]) -> None:
    oracle = OracleTarget()
    expected = oracle.model(rows[0]).logits.argmax(-1)
    assert torch.equal(oracle.model.bfloat16()(rows[0]).logits.argmax(-1), expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("counts", 9),
        ("counts", 32),
        ("digits", 1),
        ("keys", 3),
        ("keys", 6),
        ("variants", 3),
        ("tap", 0),
        ("tap", 3),
    ],
)
def test_impossible_sizes(field: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"oracle\.{field}"):
        OracleDesign(**{field: value})
