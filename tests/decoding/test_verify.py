import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dflash.decoding.verify import MatchVerifier, count_emitted, draw_tokens, leading_matches
from dflash.model import UserError

TOKENS = st.lists(st.integers(0, 2), max_size=8)


@given(TOKENS, TOKENS)
def test_leading_matches_is_the_common_prefix(proposal, drawn):
    length = leading_matches(proposal, drawn)
    assert proposal[:length] == drawn[:length]
    assert length in (len(proposal), len(drawn)) or proposal[length] != drawn[length]


def logits_for(tokens: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), 5).float() * 50


@pytest.mark.parametrize(
    ("proposal", "accepted", "token"),
    [([1, 2, 3], 3, 4), ([1, 2, 0], 2, 3), ([0, 2, 3], 0, 1), ([], 0, 1)],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_accepted_run_and_the_token_behind_it(proposal, accepted, token, temperature):
    logits = logits_for([1, 2, 3, 4][: len(proposal) + 1])
    verdict = MatchVerifier(temperature, torch.Generator().manual_seed(0))(proposal, logits)
    assert (verdict.accepted, verdict.token) == (accepted, token)


@pytest.mark.parametrize(
    ("tokens", "room", "count", "stopped"),
    [
        ([1, 2, 3], 9, 3, False),
        ([1, 2, 3], 2, 2, False),
        ([1, 7, 3], 9, 2, True),
        ([1, 2, 7], 2, 2, False),  # the stop token itself falls beyond the limit
        ([7], 1, 1, True),
        ([8, 7], 9, 1, True),
    ],
)
def test_emission_ends_at_a_stop_token_or_at_the_limit(tokens, room, count, stopped):
    assert count_emitted(tokens, room, {7, 8}) == (count, stopped)


def test_sampling_follows_the_softmax_and_the_generator():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(20_000, 3)
    drawn = draw_tokens(logits, 0.7, torch.Generator().manual_seed(3))
    again = draw_tokens(logits, 0.7, torch.Generator().manual_seed(3))
    assert torch.equal(drawn, again)
    share = torch.bincount(drawn, minlength=3) / len(drawn)
    assert torch.allclose(share, torch.softmax(logits[0] / 0.7, -1), atol=0.015)


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan")])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(UserError, match="temperature"):
        MatchVerifier(temperature)
