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
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import Logger

from dflash.data.features import FeatureSource
from dflash.data.rollouts import Rollout
from dflash.model import DFlashDraftModel, DrafterSwitches, UserError, drafter_config
from dflash.model.switches import argument_of
from dflash.target import Target, check_mask_token
from dflash.training.clock import TrainClock
from dflash.training.config import TrainConfig, total_steps
from dflash.training.datamodule import DrafterData
from dflash.training.fed import FeedRecord
from dflash.training.init import INITIALISERS
from dflash.training.lockstep import Pace, alone
from dflash.training.module import Borrowed, DrafterTraining
from dflash.training.moves import largest_moves, starting_values
from dflash.training.precision import precision_of
from dflash.training.record import FED
from dflash.training.sharding import strategy_of, whole_state
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
        order_hash, anchor_hash, feature_hash: of what all steps were fed, see
            :mod:`dflash.training.fed`; ``feature_hash`` is empty where no features are read.
        init_hash: of ``init``.
        init: parameter -> shape and hash of its starting value.
        moved: component -> largest absolute change of any of its parameters.
    """

    path: Path
    parameters: int
    steps: int
    tokens: int
    train_seconds: float
    final_loss: float
    order_hash: str
    anchor_hash: str
    feature_hash: str
    init_hash: str
    init: dict[str, str]
    moved: dict[str, float]


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


def train_drafter(
    config: TrainConfig,
    switches: DrafterSwitches,
    target: Target,
    rollouts: Sequence[Rollout],
    features: FeatureSource | None,
    seed: int,
    directory: Path,
    progress: bool = True,
    pace: Pace = alone,
) -> TrainResult:
    """Train, or go on training, in ``directory``.

    A run that was killed resumes at its last resume point; the finished weights equal those of an
    uninterrupted run bit for bit on a CPU. ``config.seed_shift`` is added to ``seed``.

    Args:
        pace: lets others train between the steps of this run, see
            :mod:`dflash.training.lockstep`; their time is not counted.
    """
    seed += config.seed_shift
    directory.mkdir(parents=True, exist_ok=True)
    rows = trainable_rows(rollouts, config.max_length)
    kept = [rollouts[row] for row in rows]
    source = None if features is None else _Rows(features, rows)
    steps = total_steps(config, len(kept))
    drafter = build_drafter(switches, target, rollouts, config, seed).to(target.device)
    start = starting_values(drafter)
    drafter.config._attn_implementation = config.attention
    clock = TrainClock(directory / FINISHED)
    before = clock.uncounted(pace)
    data = DrafterData(kept, source, config, switches.block_size, seed, steps, before)
    module = DrafterTraining(drafter, Borrowed(target.embedding, target.head), config, steps)
    watchers = [clock, FeedRecord(directory / FED)]
    L.seed_everything(seed, verbose=False)
    trainer = build_trainer(config, steps, directory, watchers, target.device, progress)
    resume = directory / CHECKPOINT
    if not resume.exists():  # else the tracker has been told
        log_parameters(cast(Logger, trainer.logger), config, switches, seed, steps)
    try:
        trainer.fit(
            module, data, ckpt_path=str(resume) if resume.exists() else None, weights_only=True
        )
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    state = whole_state(drafter)
    if trainer.is_global_zero:
        _save(drafter, state, directory / DRAFTER)
    trainer.strategy.barrier()  # the first process has written what the others read next
    fed = json.loads((directory / FED).read_text())
    del fed["chain"]  # stays in the file: thousands of hashes are no fact to show
    return TrainResult(
        path=directory / DRAFTER,
        parameters=sum(value.numel() for value in start.values()),
        steps=steps,
        moved=largest_moves(state, start),
        **json.loads((directory / FINISHED).read_text()),
        **fed,
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
    watchers: Sequence[Callback],
    device: torch.device,
    progress: bool,
) -> L.Trainer:
    """The Lightning trainer of one run, on the target's kind of device.

    Args:
        watchers: callbacks whose state belongs into the resume points.
    """
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
        num_nodes=config.nodes,
        strategy=strategy_of(config),
        precision=cast(Any, precision_of(config.precision, device)),
        logger=build_tracker(config.logger, directory, resumed_step(directory)),
        callbacks=[*watchers, resume_points, *bars],
        log_every_n_steps=1,
        enable_progress_bar=progress,
        enable_model_summary=False,
        plugins=cluster_environment(),
        use_distributed_sampler=False,
        default_root_dir=directory,
    )


def cluster_environment() -> LightningEnvironment | TorchElasticEnvironment:
    """torchrun's, or none: inside a Slurm job Lightning would take the job's tasks for ranks."""
    elastic = TorchElasticEnvironment.detect()
    return TorchElasticEnvironment() if elastic else LightningEnvironment()


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


def _save(drafter: DFlashDraftModel, state: dict[str, torch.Tensor], path: Path) -> None:
    """Write the checkpoint beside, then rename; attention implementation is not part of it."""
    temporary = path.with_name(f".{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    drafter.config._attn_implementation = "sdpa"
    drafter.save_pretrained(temporary, state_dict=dict(state))  # it empties what it is given
    if path.exists():
        shutil.rmtree(path)
    os.replace(temporary, path)
