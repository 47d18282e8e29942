from collections.abc import Callable

import pytest

from dflash.model.errors import UserError
from dflash.target import ChatTemplate

Tokenizers = Callable[..., object]
TURN = [{"role": "user", "content": "hi there"}]


def test_prompt_ends_with_the_header_of_the_answer(tokenizer: Tokenizers) -> None:
    template = ChatTemplate(tokenizer(), thinking=True)
    ids = template.prompt_ids(TURN)
    assert template.tokenizer.decode(ids) == "<user>hi there<eos><assistant>"
    assert all(type(token) is int for token in ids)


def test_thinking_is_explicit_and_changes_the_hash(tokenizer: Tokenizers) -> None:
    on, off = (ChatTemplate(tokenizer(), thinking) for thinking in (True, False))
    assert on.prompt_ids(TURN) != off.prompt_ids(TURN)
    assert on.hash != off.hash
    assert off.hash == ChatTemplate(tokenizer(), False).hash


def test_hash_follows_the_text_and_the_tokenization(tokenizer: Tokenizers) -> None:
    plain = ChatTemplate(tokenizer(), False)
    spaced = ChatTemplate(tokenizer(plain.tokenizer.chat_template + " "), False)
    # Same rendering, other text: a template that differs only for inputs the probe does not have.
    silent = ChatTemplate(tokenizer(plain.tokenizer.chat_template + "{# note #}"), False)
    merged = tokenizer()
    merged.add_tokens(["prime"])
    hashes = {plain.hash, spaced.hash, silent.hash, ChatTemplate(merged, False).hash}
    assert len(hashes) == 4


def test_no_template_is_the_users_to_fix(tokenizer: Tokenizers) -> None:
    with pytest.raises(UserError, match="chat template"):
        ChatTemplate(tokenizer(None), thinking=False)
