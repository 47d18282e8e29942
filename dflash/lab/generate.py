"""An answer streamed to the terminal while it is decoded speculatively."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from dflash.decoding.speculative import Generation, dflash_generate
from dflash.lab.config import LabConfig
from dflash.lab.single import check_fit, latest_drafter
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info
from dflash.lab.stages.train import Trained
from dflash.model.errors import UserError

DRAFTED, OWN = "green", "bold yellow"


class TextStream:
    """Token ids in, printable text out; bytes of an unfinished character wait for the rest."""

    def __init__(self, decode: Callable[[list[int]], str], hidden: Iterable[int]) -> None:
        self._decode = decode
        self._hidden = frozenset(hidden)
        self._ids: list[int] = []
        self._shown = ""

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids add."""
        self._ids += [token for token in ids if token not in self._hidden]
        text = self._decode(self._ids)
        if text.endswith("\ufffd"):
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new


class Printer:
    """Shows which tokens were drafted: by colour on a terminal, in brackets elsewhere."""

    def __init__(self, console: Console, stream: TextStream) -> None:
        self._console = console
        self._stream = stream

    def legend(self, drafter: Path) -> None:
        """Say who drafts, and what the colours or brackets mean."""
        self._console.print(f"drafter: {drafter}", soft_wrap=True, markup=False)
        marked = self._marked("drafted and accepted", DRAFTED)
        own = self._marked("the target's own: a correction, or a bonus after a whole block", OWN)
        self._console.print(Text.assemble(marked, " ", own, "\n"), soft_wrap=True)

    def step(self, accepted: list[int], own: int | None) -> None:
        """One step's tokens, as ``dflash_generate`` reports them."""
        parts = ((accepted, DRAFTED), ([] if own is None else [own], OWN))
        for ids, style in parts:
            if new := self._stream.push(ids):
                self._console.print(self._marked(new, style), end="", soft_wrap=True)

    def _marked(self, text: str, style: str) -> Text:
        if not self._console.is_terminal and style == DRAFTED:
            text = f"[{text}]"
        return Text(text, style=style)


def stream_answer(
    lab: Lab,
    config: LabConfig,
    prompt: str,
    drafter: Path | None,
    new_tokens: int,
    temperature: float,
    console: Console | None = None,
) -> Generation:
    """Answer ``prompt``, printing tokens as they come and the rates at the end.

    Args:
        drafter: a checkpoint; None takes the drafter trained last for the target.
        new_tokens: longest answer.

    Raises:
        UserError: empty prompt, no drafter, or one that does not fit the target.
    """
    if not prompt.strip():
        raise UserError.of("PROMPT", prompt, "some text")
    info = target_info(lab, config.target)
    given = None if drafter is None else Trained.of_checkpoint(drafter)
    trained = given or latest_drafter(lab.store, config)
    check_fit(trained, info)
    target = lab.target(config.target)
    console = console or Console(highlight=False)
    printer = Printer(console, TextStream(target.decode, target.stop_token_ids))
    printer.legend(trained.checkpoint)
    ids = target.encode_chat([{"role": "user", "content": prompt}])
    result = dflash_generate(
        trained.load(target),
        target,
        torch.tensor([ids]),
        new_tokens,
        stop_token_ids=target.stop_token_ids,
        temperature=temperature,
        block_size=config.decode.width,
        return_stats=True,
        generator=torch.Generator(device=target.device).manual_seed(config.data.seed),
        verify=config.decode.verify,
        on_step=printer.step,
    )
    assert isinstance(result, Generation)
    console.print(f"\n\n{rates(result)}", soft_wrap=True)
    return result


def rates(result: Generation) -> str:
    """τ and speed of one answer in words; the prompt's prefill is not in the speed."""
    counts = result.acceptance()
    if not counts.steps:
        return "no decoding step: the answer is one token"
    speed = counts.emitted / result.decode_seconds
    return (
        f"τ {counts.tau:.2f} tokens per target call ({counts.emitted} tokens, {counts.steps} "
        f"calls, {result.width - 1} drafted per call), {speed:.1f} tok/s after "
        f"{result.prefill_seconds:.2f} s of prefill"
    )
