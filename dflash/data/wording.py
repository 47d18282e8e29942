"""What a prompt is, and the words a benchmark puts around a question."""

from __future__ import annotations

from dataclasses import dataclass

REASONING_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."
FUNCTION_REQUEST = (
    "Write a solution to the following problem and make sure that it passes the tests:"
)


@dataclass(frozen=True)
class Prompt:
    """One conversation to be answered by the target.

    Attributes:
        prompt_id: unique over all prompt sets, ``<set>/<row>``.
        domain: group in stratified tables, for example ``math``, ``code``, ``writing``.
        turns: user messages in order; the target's own answers come between them.
    """

    prompt_id: str
    domain: str
    turns: tuple[str, ...]

    @property
    def set_name(self) -> str:
        """Name of the prompt set, the part of ``prompt_id`` before the row."""
        return set_name(self.prompt_id)


def set_name(prompt_id: str) -> str:
    """``gsm8k`` of ``gsm8k/test-0013``, ``hub/gsm8k`` of ``hub/gsm8k/13``."""
    return prompt_id.rpartition("/")[0]


def domain_name(category: str) -> str:
    """One word per domain in our tables: MT-Bench and Vicuna call code ``coding``."""
    return "code" if category == "coding" else category


def math_question(question: str) -> str:
    """A word problem as the paper's evaluation asks it (GSM8K, MATH-500, AIME)."""
    return question.strip() + REASONING_SUFFIX


def function_task(stub: str) -> str:
    """A Python function to complete, as the paper's evaluation asks it (HumanEval).

    Args:
        stub: signature and docstring, exactly as the benchmark gives them.
    """
    return f"{FUNCTION_REQUEST}\n```python\n{stub}\n```"


def bare_text(turn: str) -> str:
    """A turn without the frame above, which all sets of a kind share."""
    return turn.replace(REASONING_SUFFIX, "").replace(FUNCTION_REQUEST, "")
