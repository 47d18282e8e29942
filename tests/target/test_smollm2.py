"""The default target itself; slow to load, so few tests share one copy."""

from __future__ import annotations

import pytest
import torch

from dflash.target import Target, check_mask_token, looks_unused

pytestmark = pytest.mark.real_model
TAPS = [1, 8, 14, 20, 27]


@pytest.fixture(scope="module")
def question(smollm2: Target) -> torch.Tensor:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return torch.tensor([smollm2.encode_chat(messages)])


def test_shape_and_tokens(smollm2: Target) -> None:
    assert (smollm2.num_layers, smollm2.hidden_size, smollm2.vocab_size) == (30, 576, 49152)
    assert smollm2.stop_token_ids == (2,)
    assert smollm2.head.weight.data_ptr() == smollm2.embedding.weight.data_ptr()
    assert check_mask_token(smollm2, 16) == 16


def test_the_reserved_rows_look_unused_and_words_do_not(smollm2: Target) -> None:
    assert looks_unused(smollm2, 16)
    assert not any(looks_unused(smollm2, token) for token in (2, 17, 28, 260, 5000))


def test_the_dequantized_weights_still_speak(smollm2: Target, question: torch.Tensor) -> None:
    with torch.no_grad():
        output = smollm2.model.generate(question, max_new_tokens=8, do_sample=False)
    assert "Paris" in smollm2.decode(output[0, question.shape[1] :])


def test_features_are_the_hidden_states(smollm2: Target, question: torch.Tensor) -> None:
    with torch.no_grad():
        states = smollm2.model(question, output_hidden_states=True).hidden_states
    expected = torch.cat([states[tap + 1] for tap in TAPS], dim=-1)
    assert torch.equal(smollm2.features(question, TAPS), expected)
