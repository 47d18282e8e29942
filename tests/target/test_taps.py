from collections.abc import Callable

import pytest
import torch

from dflash.model.errors import UserError
from dflash.target import TapRecorder, Target
from dflash.target.taps import decoder_of

CASES = [(family, tied) for family in ("llama", "qwen3") for tied in (True, False)]


def tokens(batch: int = 2, length: int = 11) -> torch.Tensor:
    return torch.randint(8, 100, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("family", "tied"), CASES)
def test_taps_are_hidden_states_one_further(
    load_toy: Callable[..., Target], family: str, tied: bool
) -> None:
    target = load_toy(family, tied)
    ids = tokens()
    with torch.no_grad(), TapRecorder(target.model, [3, 0, 4]) as recorder:
        states = target.model(ids, output_hidden_states=True).hidden_states
    expected = torch.cat([states[4], states[1], states[5]], dim=-1)
    assert torch.equal(recorder.features(), expected)
    assert not torch.allclose(
        recorder.features()[..., :32], states[3]
    )  # off by one is another state


def test_last_layer_is_tapped_before_the_final_norm(load_toy: Callable[..., Target]) -> None:
    target = load_toy()
    ids = tokens()
    with torch.no_grad(), TapRecorder(target.model, [5]) as recorder:
        states = target.model(ids, output_hidden_states=True).hidden_states
        raw = recorder.features()
        assert not torch.allclose(raw, states[6])
        assert torch.equal(target.model.model.norm(raw), states[6])


@pytest.mark.parametrize(("family", "tied"), CASES)
@pytest.mark.parametrize("taps", [(0,), (2, 4), (4, 1), (5,)])
def test_features_equal_a_full_forward_bit_for_bit(
    load_toy: Callable[..., Target], family: str, tied: bool, taps: tuple[int, ...]
) -> None:
    target = load_toy(family, tied)
    ids = tokens()
    with torch.no_grad(), TapRecorder(target.model, taps) as recorder:
        target.model(ids, use_cache=False)
    assert torch.equal(target.features(ids, taps), recorder.features())


def test_features_stop_after_the_last_tap(load_toy: Callable[..., Target]) -> None:
    target = load_toy()
    ran: list[int] = []
    for index, layer in enumerate(target.layers):
        layer.register_forward_hook(lambda *_, index=index: ran.append(index))
    target.features(tokens(), [3, 1])
    assert ran == [0, 1, 2, 3] or ran == [0, 1, 2]  # the tap's own hook may end it first
    assert max(ran) <= 3


def test_hooks_are_gone_afterwards_even_after_an_error(load_toy: Callable[..., Target]) -> None:
    target = load_toy()
    target.features(tokens(), [1])
    with pytest.raises(ZeroDivisionError), TapRecorder(target.model, [1]):
        raise ZeroDivisionError
    assert not any(layer._forward_hooks for layer in target.layers)
    assert target.model(tokens()).logits.shape == (2, 11, 128)


def test_recorder_holds_the_latest_forward(load_toy: Callable[..., Target]) -> None:
    target = load_toy()
    with torch.no_grad(), TapRecorder(target.model, [2]) as recorder:
        with pytest.raises(RuntimeError, match="no forward"):
            recorder.features()
        target.model(tokens(length=5))
        target.model(tokens(length=7))
        assert recorder.features().shape == (2, 7, 32)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_a_row(load_toy: Callable[..., Target], side: str) -> None:
    target = load_toy("qwen3")
    row = tokens(1, 7)
    pad = torch.full((1, 4), 3)
    parts = [pad, row] if side == "left" else [row, pad]
    marks = [torch.zeros_like(pad), torch.ones_like(row)]
    mask = torch.cat(marks if side == "left" else marks[::-1], dim=1)
    padded = target.features(torch.cat(parts, dim=1), [1, 4], attention_mask=mask)
    kept = padded[:, 4:] if side == "left" else padded[:, :7]
    torch.testing.assert_close(kept, target.features(row, [1, 4]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("taps", [[], [1, 1], [6], [-1]])
def test_impossible_taps(load_toy: Callable[..., Target], taps: list[int]) -> None:
    with pytest.raises(UserError, match=r"features\.taps"):
        TapRecorder(load_toy().model, taps)


def test_a_model_without_decoder_layers_is_refused() -> None:
    with pytest.raises(UserError, match="Linear"):
        decoder_of(torch.nn.Linear(2, 2))
