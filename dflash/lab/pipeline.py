"""The stages in order, for one arm and one seed (design §2).

Every cell asks for all of its inputs; what another cell needed too is in the store by then, so one
producer serves all arms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dflash.lab.config import LabConfig
from dflash.lab.stages.answers import Split, answers_key, build_answers
from dflash.lab.stages.card import checked_card
from dflash.lab.stages.common import Lab
from dflash.lab.stages.decode import build_decode, decode_key
from dflash.lab.stages.features import build_split_features, features_key
from dflash.lab.stages.floors import FLOORS, build_floor, floor_key
from dflash.lab.stages.ranks import check_devices_here, check_ranks
from dflash.lab.stages.replay import build_replay, replay_key
from dflash.lab.stages.target import TargetInfo
from dflash.lab.stages.train import Trained, Training, train_key
from dflash.lab.store import Key, Store
from dflash.model import DFlashDraftModel, drafter_config
from dflash.model.errors import UserError
from dflash.training.trackers import check_tracker

SPLITS: tuple[Split, ...] = ("train", "eval")
AnswersKey = Callable[[LabConfig, Split, dict[str, str]], Key]


@dataclass(frozen=True)
class Cell:
    """What one arm and seed left in the store."""

    trained: Trained
    replay: Path
    decode: Path | None  # None when no prompt is to be really decoded

    def names(self) -> dict[str, str]:
        """Stage -> name of the entry, as ``read_cell`` wants it."""
        names = {"train": self.trained.name, "replay": self.replay.name}
        return names if self.decode is None else names | {"decode": self.decode.name}


def prepare_training(lab: Lab, config: LabConfig, info: TargetInfo, seed: int) -> Training:
    """Everything up to the training of a drafter.

    Raises:
        UserError: data that fail the gates; see the stages.
    """
    answers = build_answers(lab, config, "train", info.identity)
    checked_card(config, info, answers, build_answers(lab, config, "eval", info.identity))
    features = build_split_features(lab, config, "train", info, answers)
    return Training(lab, config, seed, info.identity, answers, features)


def train_cell(lab: Lab, config: LabConfig, info: TargetInfo, seed: int) -> Trained:
    """Everything up to the trained drafter.

    Raises:
        UserError: data that fail the gates; see the stages.
    """
    return prepare_training(lab, config, info, seed).build()


def evaluate_drafter(
    lab: Lab, config: LabConfig, info: TargetInfo, trained: Trained
) -> tuple[Path, Path | None]:
    """Replay of a drafter, and its real decoding when ``decode.prompts_per_bench`` is not 0.

    Raises:
        UserError: see the stages.
    """
    answers = build_answers(lab, config, "eval", info.identity)
    features = build_split_features(lab, config, "eval", info, answers)
    replayed = build_replay(lab, config, trained, answers, features)
    if config.decode.prompts_per_bench == 0:
        return replayed, None
    return replayed, build_decode(lab, config, trained, answers, info.device)


def run_cell(lab: Lab, config: LabConfig, info: TargetInfo, seed: int) -> Cell:
    """One arm, one seed: train, replay, decode."""
    trained = train_cell(lab, config, info, seed)
    return Cell(trained, *evaluate_drafter(lab, config, info, trained))


def read_cell(store: Store, names: Mapping[str, str]) -> Cell:
    """A cell from the names of its entries."""
    decode = store.root / names["decode"] if "decode" in names else None
    trained = Trained.of_entry(store.root / names["train"])
    return Cell(trained, store.root / names["replay"], decode)


def stored_cell(
    store: Store, config: LabConfig, info: TargetInfo, seed: int
) -> dict[str, str] | None:
    """Names of a finished cell's entries, or None when this machine would have to build one.

    Raises:
        StoreError: a damaged entry.
    """
    keys = list(cell_keys(config, info, seed))
    return {key.stage: key.name for key in keys} if all(map(store.has, keys)) else None


def prepare_shared(lab: Lab, config: LabConfig, info: TargetInfo) -> None:
    """Build the answers and features that cells have in common, so that none waits for another.

    Raises:
        UserError: data that fail the gates; see the stages.
    """
    run_shared(lab, config, info)
    for split in SPLITS:
        answers = build_answers(lab, config, split, info.identity)
        build_split_features(lab, config, split, info, answers)


def is_prepared(store: Store, config: LabConfig, info: TargetInfo) -> bool:
    """Is everything there that ``prepare_shared`` would need a target for?

    Raises:
        StoreError: a damaged entry.
    """
    keys = cell_keys(config, info, seed=0)
    return all(store.has(key) for key in keys if key.stage in ("rollouts", "features"))


def run_shared(
    lab: Lab, config: LabConfig, info: TargetInfo
) -> tuple[dict[str, Path], dict[str, Any]]:
    """What an experiment has once: the floors of the control (name -> entry) and the data card.

    Raises:
        UserError: data that fail the gates; see the stages.
    """
    train = build_answers(lab, config, "train", info.identity)
    evaluation = build_answers(lab, config, "eval", info.identity)
    card = checked_card(config, info, train, evaluation)
    width = _floor_width(config)
    return {name: build_floor(lab, name, width, train, evaluation) for name in FLOORS}, card


def floor_keys(config: LabConfig, info: TargetInfo) -> dict[str, Key]:
    """Name -> key of the floors that belong to a control."""
    train, evaluation = (
        answers_key(config, split, info.identity).name for split in ("train", "eval")
    )
    return {name: floor_key(name, _floor_width(config), train, evaluation) for name in FLOORS}


def _floor_width(config: LabConfig) -> int:
    return config.decode.width or config.drafter.block_size


def cell_keys(
    config: LabConfig, info: TargetInfo, seed: int, answers: AnswersKey = answers_key
) -> Iterator[Key]:
    """Keys of all entries of one cell, in the order in which they are built.

    Args:
        answers: key of a split's answers; a plan gives its own where it cannot know the text.
    """
    names: dict[str, tuple[str, str | None]] = {}
    for split in SPLITS:
        rollouts = answers(config, split, info.identity)
        features = features_key(config, split, info, rollouts.name)
        yield rollouts
        if features is not None:
            yield features
        names[split] = (rollouts.name, None if features is None else features.name)
    drafter = train_key(config, seed, info.identity, *names["train"])
    yield drafter
    yield replay_key(config, drafter.name, *names["eval"])
    if config.decode.prompts_per_bench:
        evaluation = names["eval"][0]
        plain = decode_key(config, None, evaluation, info.device, None)
        yield plain
        yield decode_key(config, drafter.name, evaluation, info.device, plain.name)


def check_cell(config: LabConfig, info: TargetInfo) -> int:
    """Build an arm's drafter without memory, so that what cannot work fails before anything runs.

    Returns:
        Number of trainable parameters.

    Raises:
        UserError: taps, mask token, sizes, widths, devices or a tracker that do not fit.
    """
    check_ranks(config)
    if config.train.nodes > 1 and config.executor.kind != "slurm":
        raise UserError.of("train.nodes", config.train.nodes, "1, or executor.kind=slurm")
    if config.executor.kind == "local":  # elsewhere the machine that trains is another one
        check_devices_here(config)
    check_tracker(config.train.logger)
    width, block = config.decode.width, config.drafter.block_size
    if width is not None and width > block:
        raise UserError.of("decode.width", width, f"at most drafter.block_size={block}")
    drafter = drafter_config(info.hf_config, config.drafter, config.target.mask_token_id)
    if config.drafter.mask_embedding == "reserved" and config.target.mask_token_id is None:
        raise UserError.of(
            "target.mask_token_id", None, "an unused token id, or another drafter.mask_embedding"
        )
    with torch.device("meta"):
        model = DFlashDraftModel(drafter)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
