from collections.abc import Callable

import pytest
import torch

from dflash.model.errors import UserError
from dflash.target import Target, check_mask_token, looks_unused

Load = Callable[..., Target]


def test_a_reserved_token_passes(load_toy: Load) -> None:
    assert check_mask_token(load_toy(), 4) == 4


@pytest.mark.parametrize(
    ("token", "word"),
    [
        (None, "never uses"),
        (-1, "from 0 to 127"),
        (128, "from 0 to 127"),
        (0, "unk"),
        (1, "bos"),
        (2, "stop token"),
        (3, "pad"),
    ],
)
def test_a_token_with_a_meaning_is_refused(load_toy: Load, token: int | None, word: str) -> None:
    with pytest.raises(UserError, match=r"target\.mask_token_id") as caught:
        check_mask_token(load_toy(), token)
    assert word in str(caught.value)


def test_every_stop_token_is_refused(load_toy: Load) -> None:
    target = load_toy()
    target.stop_token_ids = (2, 77)
    with pytest.raises(UserError, match="stop token"):
        check_mask_token(target, 77)


def test_rows_that_training_left_together_look_unused(load_toy: Load) -> None:
    target = load_toy()
    assert not looks_unused(target, 100)
    with torch.no_grad():
        rows = target.embedding.weight
        rows[100] = rows[101] * 1.01 + 1e-4
    assert looks_unused(target, 100)
    assert not looks_unused(target, 102)
