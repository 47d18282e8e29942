"""Stage "features": tapped states of the target over a split, shared by arms with equal taps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash.data.features import FeatureStore, build_features
from dflash.lab.config import LabConfig
from dflash.lab.stages.answers import Answers, Split
from dflash.lab.stages.common import Code, Lab
from dflash.lab.stages.target import TargetInfo
from dflash.lab.store import Key
from dflash.model.taps import resolve_taps

CODE = Code(
    roots=("dflash.lab.stages.features", "dflash.data.features"),
    packages=("dflash.data", "dflash.target", "dflash.model"),
)


@dataclass(frozen=True)
class Features:
    """Stored features of one split."""

    entry: Path

    def open(self) -> FeatureStore:
        """Memory-mapped; row i belongs to rollout i."""
        return FeatureStore(self.entry)


def features_key(config: LabConfig, split: Split, info: TargetInfo, rollouts: str) -> Key | None:
    """Key of the features an arm reads, or None when it reads none from disk."""
    online = split == "train" and config.data.mode == "online"
    if config.drafter.kv.fusion == "none" or online:
        return None
    taps = resolve_taps(config.drafter.features.taps, info.num_layers)
    # Replay must equal decoding exactly, so what judges a drafter is never rounded.
    dtype = config.data.feature_dtype if split == "train" else "float32"
    parts = {"taps": list(taps), "dtype": dtype, "target": info.identity}
    return CODE.key("features", parts, {"rollouts": rollouts})


def build_split_features(
    lab: Lab, config: LabConfig, split: Split, info: TargetInfo, answers: Answers
) -> Features | None:
    """Features of every token of a split's rollouts.

    Raises:
        UserError: taps that do not fit the target.
        StoreError: damaged entry or no space left.
    """
    key = features_key(config, split, info, answers.entry.name)
    if key is None:
        return None
    taps, dtype = tuple(key.config["taps"]), key.config["dtype"]

    def work(directory: Path) -> None:
        lab.say(f"features of layers {', '.join(map(str, taps))} ({split}, {dtype})")
        build_features(
            lab.target(config.target),
            answers.rollouts(),
            taps,
            dtype,
            directory,
            progress=lab.progress,
        )

    return Features(lab.store.build(key, work))
