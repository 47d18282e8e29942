"""The chat template: how a conversation becomes token ids (pitfalls rows 71-73).

Two things are never left to a template's own default: the thinking mode is passed explicitly, and
the template is identified by a hash of its text, the mode and the ids it renders for a probe, so
that features made under one template cannot meet prompts made under another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from dflash.model.errors import UserError

PROBE: tuple[dict[str, str], ...] = (
    {"role": "user", "content": "Is 7 a prime number?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And 9?\n  Explain."},
)


class ChatTemplate:
    """Renders messages with a tokenizer's own template.

    Args:
        tokenizer: a Hugging Face tokenizer.
        thinking: passed to the template as ``enable_thinking``.

    Raises:
        UserError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, thinking: bool) -> None:
        if not getattr(tokenizer, "chat_template", None):
            name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
            raise UserError.of("target.source", name, "a model whose tokenizer has a chat template")
        self.tokenizer = tokenizer
        self.thinking = thinking

    def prompt_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of ``messages`` followed by the header of the assistant's turn to come."""
        ids = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=True,
            add_generation_prompt=True,
            return_dict=False,
            enable_thinking=self.thinking,
        )
        return [int(token) for token in ids]

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that change with the text, the mode or the tokenization."""
        identity = {
            "template": self.tokenizer.chat_template,
            "thinking": self.thinking,
            "probe": self.prompt_ids(PROBE),
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
