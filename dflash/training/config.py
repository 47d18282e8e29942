"""How a drafter is trained; the only place where these defaults are written.

The defaults are the paper's recipe where the paper states one (sections 5 and A.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from dflash.model.errors import UserError

# What changes how a run is watched or resumed, not what it computes.
IRRELEVANT = ("logger", "checkpoint_every")


@dataclass(frozen=True)
class LossConfig:
    """Loss of a slot and weight of its position.

    ``gamma=None`` lies on the two straight lines through the paper's three points (A.1): 4 at block
    size 8, 5 at 10 and 7 at 16.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    token: Literal["ce"] = "ce"
    position: Literal["exp", "none"] = "exp"
    gamma: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma <= 0:
            raise UserError.of("train.loss.gamma", self.gamma, "a positive number or null")

    def gamma_for(self, block_size: int) -> float:
        """Decay length in slots."""
        if self.gamma is not None:
            return self.gamma
        return min(block_size / 2, (block_size + 5) / 3)


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    Attributes:
        steps: optimizer steps; ``None`` means ``epochs`` passes over the sequences.
        sequences: sequences per optimizer step, over all devices.
        devices: that train one drafter together, on each of ``nodes`` machines.
        micro_batch: sequences per forward; ``None`` means all of a step's at once.
        anchors_per_sequence: blocks drawn from one sequence in a step.
        init: ``random``, or ``target`` to start from the target's own layers.
        precision: ``auto`` is bf16 autocast where the device has fast bf16, else 32-bit;
            master weights are fp32 either way.
        checkpoint_every: optimizer steps between resume points.
        logger: where loss and learning rate of every step go, see ``dflash.training.trackers``.
        replica: number of a rerun; it changes nothing that is computed.
        seed_shift: added to the seed of initial values, order and anchors; pairing stays by the
            seed without it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    steps: int | None = None
    epochs: int = 6
    sequences: int = 32
    micro_batch: int | None = None
    anchors_per_sequence: int = 512
    anchors: Literal["random", "uniform", "all"] = "random"
    loss: LossConfig = field(default_factory=LossConfig)
    init: Literal["random", "target"] = "random"
    lr: float = 6e-4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_ratio: float = 0.04
    min_lr_ratio: float = 0.0
    clip: float = 1.0
    max_length: int = 3072
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    attention: Literal["blocks", "sdpa", "eager", "flex_attention"] = "blocks"
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    checkpoint_every: int = 50
    logger: Literal["csv", "tensorboard", "wandb", "mlflow"] = "csv"
    replica: int = 0
    seed_shift: int = 0

    def __post_init__(self) -> None:
        positive = ("epochs", "sequences", "anchors_per_sequence", "checkpoint_every")
        for name in (*positive, "devices", "nodes"):
            if getattr(self, name) < 1:
                raise UserError.of(f"train.{name}", getattr(self, name), "an integer of at least 1")
        for name in ("steps", "micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError.of(f"train.{name}", value, "null or an integer of at least 1")
        if self.sequences < self.ranks:
            name = "devices" if self.nodes == 1 else "nodes"
            allowed = f"at most train.sequences={self.sequences} processes over all nodes"
            raise UserError.of(f"train.{name}", getattr(self, name), allowed)
        for name in ("replica", "seed_shift"):
            if getattr(self, name) < 0:
                raise UserError.of(f"train.{name}", getattr(self, name), "an integer from 0 on")
        for name in ("lr", "clip"):
            if getattr(self, name) <= 0:
                raise UserError.of(f"train.{name}", getattr(self, name), "a positive number")
        for name in ("warmup_ratio", "min_lr_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError.of(f"train.{name}", getattr(self, name), "a number from 0 to 1")

    @property
    def ranks(self) -> int:
        """Processes that train one drafter."""
        return self.devices * self.nodes


def total_steps(config: TrainConfig, sequences: int) -> int:
    """Optimizer steps of a run over ``sequences`` training sequences."""
    if config.steps is not None:
        return config.steps
    return config.epochs * -(-sequences // config.sequences)
