"""Speculative decoding of one sequence (paper §1.3), and plain decoding by the very same loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dflash.decoding.cached import (
    CachedDrafter,
    CachedTarget,
    Clock,
    causal_lm_of,
    check_prompt,
    evaluating,
)
from dflash.decoding.verify import VERIFIERS, MatchVerifier, count_emitted, draw_tokens
from dflash.metrics import AcceptanceCounter
from dflash.model import DFlashDraftModel, UserError
from dflash.target import TapRecorder, Target
from dflash.target.load import context_limit

__all__ = ["Generation", "OnStep", "Step", "dflash_generate"]

OnStep = Callable[[list[int], int | None], None]


@dataclass(frozen=True)
class Step:
    """One verification.

    Attributes:
        anchor: absolute position of the block's first token.
        accepted: drafted tokens the target agreed with, before truncation.
        emitted: tokens that reached the output.
        t_draft, t_verify, t_host: seconds in the drafter, in the target, and in everything else
            (verification rule, bookkeeping, ``on_step``).
    """

    anchor: int
    accepted: int
    emitted: int
    t_draft: float
    t_verify: float
    t_host: float


@dataclass
class Generation:
    """One decoded sequence.

    Attributes:
        output_ids: prompt and output. ``[1, P + n]``
        num_input_tokens, num_output_tokens: P and n. Unless n is 0, the first output token comes
            from prefill, and the steps emitted the other n−1.
        steps: one entry per verification.
        width: tokens the target verified per step, the anchor included.
        prefill_seconds: the target over the prompt and the first token.
        decode_seconds: everything after; the drafter's own pass over the prompt, which is its first
            draft, is in here.
    """

    output_ids: Tensor
    num_input_tokens: int
    num_output_tokens: int
    width: int
    prefill_seconds: float
    decode_seconds: float
    steps: list[Step] = field(default_factory=list)

    @property
    def acceptance_lengths(self) -> list[int]:
        """Tokens emitted by each step; they sum to ``num_output_tokens - 1`` (0 for no output)."""
        return [step.emitted for step in self.steps]

    @property
    def timings(self) -> dict[str, float]:
        """Seconds: ``prefill``; ``draft``, ``verify`` and ``host`` over all steps; ``decode``."""
        return {
            "prefill": self.prefill_seconds,
            "draft": sum(step.t_draft for step in self.steps),
            "verify": sum(step.t_verify for step in self.steps),
            "host": sum(step.t_host for step in self.steps),
            "decode": self.decode_seconds,
        }

    def acceptance(self) -> AcceptanceCounter:
        """Counts of this sequence."""
        return AcceptanceCounter.of_prompt(
            self.acceptance_lengths, [step.accepted for step in self.steps], self.width
        )


@torch.inference_mode()
def dflash_generate(
    draft: DFlashDraftModel | None,
    target: Target | PreTrainedModel,
    input_ids: Tensor,
    max_new_tokens: int,
    stop_token_ids: Collection[int] | None = None,
    temperature: float = 0.0,
    block_size: int | None = None,
    return_stats: bool = False,
    *,
    generator: torch.Generator | None = None,
    verify: str = "match",
    on_step: OnStep | None = None,
) -> Tensor | Generation:
    """Continue ``input_ids`` with the target's own tokens, drafted a block at a time.

    Args:
        draft: the drafter; may be None when ``block_size`` is 1.
        target: the frozen target, ours or a Hugging Face causal language model.
        input_ids: the prompt. ``[1, P]``
        max_new_tokens: longest output; 0 returns the prompt.
        stop_token_ids: tokens that end the output (and are emitted). None: nothing does, also not
            the target's own end of sequence.
        temperature: of the target; the proposal is the drafter's argmax at any temperature.
        block_size: tokens the target verifies per step, the anchor included; None is the drafter's
            trained block. A narrower one drafts the whole trained block all the same, since slots
            see each other and a shorter block is one the drafter was never trained on, and verifies
            its first ``block_size - 1`` tokens. 1 is plain autoregressive decoding.
        return_stats: return a ``Generation`` in place of the token ids.
        generator: randomness at temperature > 0, on the target's device; None is torch's own.
        verify: name of the verification rule.
        on_step: called with (accepted tokens, the target's own token) as they reach the output: for
            the prefill token ([], token), then for every step. The token is None where the output
            ended inside the accepted run.

    Returns:
        ``[1, P + n]`` token ids, or a ``Generation``.

    Raises:
        UserError: an input that cannot be decoded, named in the message.
    """
    model = causal_lm_of(target)
    check_prompt(input_ids, max_new_tokens, context_limit(model))
    width = _width(draft, block_size)
    if verify not in VERIFIERS:
        raise UserError.of("verify", verify, ", ".join(VERIFIERS))
    loop = _Loop(
        draft=draft if width > 1 else None,
        model=model,
        width=width,
        verifier=VERIFIERS[verify](temperature, generator),
        stop_ids=frozenset(stop_token_ids or ()),
        on_step=on_step,
    )
    with evaluating(*([model] if draft is None else [model, draft])):
        generation = loop.run(input_ids.to(model.device), max_new_tokens)
    return generation if return_stats else generation.output_ids


def _width(draft: DFlashDraftModel | None, block_size: int | None) -> int:
    if draft is None:
        if block_size != 1:
            raise UserError.of("block_size", block_size, "1 without a drafter")
        return 1
    if block_size is None:
        return draft.block_size
    if not 1 <= block_size <= draft.block_size:
        raise UserError.of("block_size", block_size, f"1 to {draft.block_size}, the trained block")
    return block_size


@dataclass
class _Loop:
    draft: DFlashDraftModel | None
    model: PreTrainedModel
    width: int
    verifier: MatchVerifier
    stop_ids: Collection[int]
    on_step: OnStep | None

    def run(self, input_ids: Tensor, max_new_tokens: int) -> Generation:
        length = input_ids.shape[1]
        if max_new_tokens == 0:
            return Generation(input_ids, length, 0, self.width, 0.0, 0.0)
        clock, tokens = Clock(self.model.device), input_ids[0].tolist()
        reads = self.draft is not None and self.draft.reads_features
        layers = self.draft.target_layer_ids if self.draft is not None and reads else ()
        with contextlib.ExitStack() as stack:
            taps = stack.enter_context(TapRecorder(self.model, layers)) if reads else None
            target = CachedTarget(self.model, taps)
            begin = clock.now()
            logits = target.forward(tokens, logits_to_keep=1)[-1:]  # [1, V]
            first = draw_tokens(logits, self.verifier.temperature, self.verifier.generator)
            tokens.append(int(first))
            prefilled = clock.now()
            self._report(tokens[-1:], accepted=0)
            steps = self._decode(target, tokens, length + max_new_tokens, clock)
            end = clock.now()
        return Generation(
            output_ids=torch.tensor([tokens], device=input_ids.device),
            num_input_tokens=length,
            num_output_tokens=len(tokens) - length,
            width=self.width,
            prefill_seconds=prefilled - begin,
            decode_seconds=end - prefilled,
            steps=steps,
        )

    def _decode(
        self, target: CachedTarget, tokens: list[int], limit: int, clock: Clock
    ) -> list[Step]:
        """Extend ``tokens`` in place, up to ``limit`` or a stop token."""
        drafter = CachedDrafter(self.draft, self.model) if self.draft is not None else None
        features = target.features()  # at the tokens the drafter has not seen yet
        steps: list[Step] = []
        stopped = tokens[-1] in self.stop_ids
        begin = clock.now()
        while len(tokens) < limit and not stopped:
            anchor = len(tokens) - 1
            proposal: list[int] = []
            if drafter is not None:
                proposal = drafter.propose(tokens, features, self.width - 1)
            drafted = clock.now()
            logits = target.forward([tokens[anchor], *proposal])  # [width, V]
            verified = clock.now()
            verdict = self.verifier(proposal, logits)
            new = [*proposal[: verdict.accepted], verdict.token]
            emitted, stopped = count_emitted(new, limit - len(tokens), self.stop_ids)
            tokens += new[:emitted]
            target.crop(len(tokens) - 1)
            features = _first(target.features(), emitted)
            self._report(new[:emitted], verdict.accepted)
            end = clock.now()
            laps = (drafted - begin, verified - drafted, end - verified)
            steps.append(Step(anchor, verdict.accepted, emitted, *laps))
            begin = end
        return steps

    def _report(self, emitted: list[int], accepted: int) -> None:
        if self.on_step is not None:
            own = emitted[accepted] if len(emitted) > accepted else None
            self.on_step(emitted[:accepted], own)


def _first(features: Tensor | None, count: int) -> Tensor | None:
    return None if features is None else features[:, :count]
