"""Acceptance counts of speculative decoding: sums that add, ratios that are read off the sums.

Words (conventions §2): a *step* is one verification by the target. It *accepts* a run of drafted
tokens and *emits* that run plus one token of the target's own (the correction, or the bonus when
the whole block was right), cut short at a stop token or at the length limit. τ is emitted/steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

__all__ = ["AcceptanceCounter", "ratio"]


def ratio(numerator: float, denominator: float) -> float:
    """``numerator / denominator``, and nan (never an error, never 0) when nothing was counted."""
    return numerator / denominator if denominator else float("nan")


@dataclass(frozen=True)
class AcceptanceCounter:
    """Sums over the steps of any number of prompts; add two counters to pool them.

    Attributes:
        steps: verifications by the target.
        slots: drafted tokens put before the target.
        accepted: drafted tokens that the target agreed with, before any truncation.
        emitted: tokens that reached the output.
        prompts: prompts with at least one step.
        tau_sum: Σ over prompts of that prompt's emitted/steps.
        inverse_tau_sum: Σ over prompts of that prompt's steps/emitted.
    """

    steps: int = 0
    slots: int = 0
    accepted: int = 0
    emitted: int = 0
    prompts: int = 0
    tau_sum: float = 0.0
    inverse_tau_sum: float = 0.0

    @classmethod
    def of_prompt(
        cls, emitted: Sequence[int], accepted: Sequence[int], width: int
    ) -> AcceptanceCounter:
        """Count one prompt.

        Args:
            emitted: tokens emitted by each step, truncated at the end of the output (each >= 1).
            accepted: drafted tokens accepted by each step.
            width: tokens the target verified per step, the anchor included; 1 is plain decoding.

        Raises:
            ValueError: the two sequences differ in length, or a step emitted nothing.
        """
        if len(emitted) != len(accepted):
            raise ValueError(f"{len(emitted)} emitted counts but {len(accepted)} accepted counts")
        if not emitted:
            return cls()
        if min(emitted) < 1:
            raise ValueError("a step always emits at least one token")
        steps, total = len(emitted), int(sum(emitted))
        return cls(
            steps=steps,
            slots=steps * (width - 1),
            accepted=int(sum(accepted)),
            emitted=total,
            prompts=1,
            tau_sum=total / steps,
            inverse_tau_sum=steps / total,
        )

    def __add__(self, other: AcceptanceCounter) -> AcceptanceCounter:
        return AcceptanceCounter(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    @property
    def tau(self) -> float:
        """Emitted tokens per step, pooled over all steps, truncated at the end of each output."""
        return ratio(self.emitted, self.steps)

    @property
    def tau_mean(self) -> float:
        """Mean over prompts of each prompt's τ: an easy prompt weighs as much as a long one."""
        return ratio(self.tau_sum, self.prompts)

    @property
    def tau_harmonic(self) -> float:
        """Harmonic mean over prompts of τ: what a mean time per output token implies."""
        return ratio(self.prompts, self.inverse_tau_sum)

    @property
    def accept_rate(self) -> float:
        """Share of the drafted tokens that were accepted; the bonus token is not in it."""
        return ratio(self.accepted, self.slots)

    @property
    def al_incl_bonus(self) -> float:
        """1 + accepted/steps, untruncated; equals 1 + ``accept_rate`` · drafted slots per step."""
        return 1 + ratio(self.accepted, self.steps)
