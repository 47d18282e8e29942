"""Train one drafter, resumably, and leave a checkpoint in the public layout."""

from __future__ import annotations

import json
import logging
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import Logger

from dflash.data.features import FeatureSource
from dflash.data.rollouts import Rollout
from dflash.model import DFlashDraftModel, DrafterSwitches, UserError, drafter_config
from dflash.model.switches import argument_of
from dflash.target import Target, check_mask_token
from dflash.training.clock import TrainClock
from dflash.training.config import TrainConfig
from dflash.training.datamodule import DrafterData
from dflash.training.init import INITIALISERS
from dflash.training.module import Borrowed, DrafterTraining
from dflash.training.precision import precision_of
from dflash.training.trackers import build_tracker, log_parameters

CHECKPOINT = "last.ckpt"
DRAFTER = "drafter"
CHATTER = (
    ".*GPU available but not used.*",
    "Checkpoint directory .* exists and is not empty.*",  # that is what resuming means
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
    "Using ModelCheckpoint with manual optimization.*",  # after the step is what we want
    "You're resuming from a checkpoint that ended before the epoch ended.*",  # step s gets batch s
    ".*does not have many workers.*",  # batches are read from mapped memory
)
FINISHED = "clock.json"


@dataclass(frozen=True)
class TrainResult:
    """What a training run leaves.

    Attributes:
        path: folder of the checkpoint.
        parameters: trainable parameters, the target's not counted.
        tokens: supervised slots seen, over all steps.
        train_seconds: wall clock, summed over resumed parts.
        norm_moved: largest absolute change of any q/k-norm weight; NaN without such norms.
    """

    path: Path
    parameters: int
    steps: int
    tokens: int
    train_seconds: float
    final_loss: float
    norm_moved: float


def build_drafter(
    switches: DrafterSwitches,
    target: Target,
    rollouts: Sequence[Rollout],
    config: TrainConfig,
    seed: int,
) -> DFlashDraftModel:
    """A drafter for ``target`` at its starting values, draft vocabulary fixed.

    Raises:
        UserError: mask token missing or unusable, taps or vocabulary that do not fit.
    """
    mask_token = target.config.mask_token_id
    if switches.mask_embedding == "reserved":
        check_mask_token(target, mask_token)
    drafter = DFlashDraftModel(drafter_config(target.model.config, switches, mask_token))
    if switches.vocab != "full":
        size = argument_of(switches.vocab)
        drafter.set_vocab(torch.as_tensor(frequent_tokens(rollouts, size, target.vocab_size)))
    INITIALISERS[config.init](drafter, target, seed, rollouts)
    return drafter


def frequent_tokens(rollouts: Sequence[Rollout], size: int, vocab_size: int) -> np.ndarray:
    """The ``size`` most frequent answer tokens, ascending ids; rare ones fill up by id.

    Raises:
        UserError: more tokens than the vocabulary has.
    """
    if size > vocab_size:
        raise UserError.of("drafter.vocab", f"top:{size}", f"at most top:{vocab_size}")
    answers = np.concatenate([row.answer_ids for row in rollouts])
    counts = np.bincount(answers, minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def total_steps(config: TrainConfig, sequences: int) -> int:
    """Optimizer steps of a run over ``sequences`` training sequences."""
    if config.steps is not None:
        return config.steps
    return config.epochs * -(-sequences // config.sequences)


def train_drafter(
    config: TrainConfig,
    switches: DrafterSwitches,
    target: Target,
    rollouts: Sequence[Rollout],
    features: FeatureSource | None,
    seed: int,
    directory: Path,
    progress: bool = True,
) -> TrainResult:
    """Train, or go on training, in ``directory``.

    A run that was killed resumes at its last resume point; the finished weights equal those of an
    uninterrupted run bit for bit on a CPU.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows = trainable_rows(rollouts, config.max_length)
    kept = [rollouts[row] for row in rows]
    source = None if features is None else _Rows(features, rows)
    steps = total_steps(config, len(kept))
    drafter = build_drafter(switches, target, rollouts, config, seed).to(target.device)
    start = _norm_weights(drafter)
    drafter.config._attn_implementation = config.attention
    data = DrafterData(kept, source, config, switches.block_size, seed, steps)
    module = DrafterTraining(drafter, Borrowed(target.embedding, target.head), config, steps)
    clock = TrainClock(directory / FINISHED)
    L.seed_everything(seed, verbose=False)
    trainer = build_trainer(config, steps, directory, clock, target.device, progress)
    resume = directory / CHECKPOINT
    if not resume.exists():  # else the tracker has been told
        log_parameters(cast(Logger, trainer.logger), config, switches, seed, steps)
    try:
        trainer.fit(
            module, data, ckpt_path=str(resume) if resume.exists() else None, weights_only=True
        )
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    _save(drafter, directory / DRAFTER)
    return TrainResult(
        path=directory / DRAFTER,
        parameters=sum(p.numel() for p in drafter.parameters() if p.requires_grad),
        steps=steps,
        norm_moved=_largest_move(drafter, start),
        **json.loads((directory / FINISHED).read_text()),
    )


def trainable_rows(rollouts: Sequence[Rollout], max_length: int) -> list[int]:
    """Indices of sequences with at least one anchor that are not too long.

    Raises:
        UserError: none is left.
    """
    rows = [
        index
        for index, row in enumerate(rollouts)
        if len(row.answer_ids) >= 2 and len(row.token_ids) <= max_length
    ]
    if not rows:
        allowed = f"sequences of at most that many tokens ({len(rollouts)} given, none fits)"
        raise UserError.of("train.max_length", max_length, allowed)
    return rows


def build_trainer(
    config: TrainConfig,
    steps: int,
    directory: Path,
    clock: Callback,
    device: torch.device,
    progress: bool,
) -> L.Trainer:
    """The Lightning trainer of one run, on the target's kind of device."""
    resume_points = ModelCheckpoint(
        dirpath=directory,
        filename="last",
        every_n_train_steps=config.checkpoint_every,
        save_top_k=1,
        enable_version_counter=False,
    )
    bars: list[Callback] = [TQDMProgressBar(refresh_rate=5)] if progress else []
    quiet_lightning()
    return L.Trainer(
        max_steps=steps,
        max_epochs=1,
        accelerator=device.type,
        devices=devices_of(config, device),
        strategy=config.strategy,
        precision=cast(Any, precision_of(config.precision, device)),
        logger=build_tracker(config.logger, directory, resumed_step(directory)),
        callbacks=[clock, resume_points, *bars],
        log_every_n_steps=1,
        enable_progress_bar=progress,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=directory,
    )


def resumed_step(directory: Path) -> int:
    """Optimizer steps that the resume point has; 0 without one."""
    path = directory / CHECKPOINT
    if not path.exists():
        return 0
    return int(torch.load(path, map_location="cpu", mmap=True, weights_only=True)["global_step"])


def quiet_lightning() -> None:
    """Silence Lightning's advice and its notes about itself; other warnings stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in CHATTER:
        warnings.filterwarnings("ignore", message=message)


def devices_of(config: TrainConfig, device: torch.device) -> int | list[int]:
    """Lightning's devices: the target's own where one is enough."""
    if config.devices == 1 and device.type == "cuda":
        return [device.index or 0]
    return config.devices


class _Rows:
    """A feature source seen through a selection of rows."""

    def __init__(self, source: FeatureSource, rows: list[int]) -> None:
        self.source, self.rows = source, rows

    def row(self, index: int) -> torch.Tensor:
        return self.source.row(self.rows[index])


def _norm_weights(drafter: DFlashDraftModel) -> dict[str, torch.Tensor]:
    names = ("q_norm.weight", "k_norm.weight")
    return {
        name: value.detach().clone()
        for name, value in drafter.named_parameters()
        if name.endswith(names)
    }


def _largest_move(drafter: DFlashDraftModel, start: dict[str, torch.Tensor]) -> float:
    now = _norm_weights(drafter)
    moves = [float((now[name] - value.to(now[name])).abs().max()) for name, value in start.items()]
    return max(moves, default=float("nan"))


def _save(drafter: DFlashDraftModel, path: Path) -> None:
    """Write the checkpoint beside, then rename; attention implementation is not part of it."""
    temporary = path.with_name(f".{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    drafter.config._attn_implementation = "sdpa"
    drafter.save_pretrained(temporary)
    if path.exists():
        shutil.rmtree(path)
    os.replace(temporary, path)
