"""Stage "train": one drafter, for one arm and one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from transformers import Qwen3Config

from dflash.data.features import FeatureSource, OnlineFeatures
from dflash.data.shared import SharedFeatures
from dflash.lab.config import LabConfig
from dflash.lab.provenance import device_name, machine_facts, package_versions, source_tree
from dflash.lab.schema import plain
from dflash.lab.stages.answers import Answers
from dflash.lab.stages.common import Code, Lab, read_json, write_json
from dflash.lab.stages.features import Features
from dflash.lab.stages.ranks import launch_ranks
from dflash.lab.store import Key
from dflash.model.config import switches_of
from dflash.model.drafter import DFlashDraftModel
from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches
from dflash.model.taps import resolve_taps
from dflash.target import Target
from dflash.target.load import device_of
from dflash.training.config import IRRELEVANT
from dflash.training.lockstep import Pace, alone
from dflash.training.precision import precision_of
from dflash.training.ranks import is_first_rank
from dflash.training.record import FED, FED_HASHES

if TYPE_CHECKING:
    from dflash.training.run import TrainResult

CODE = Code(
    roots=("dflash.lab.stages.train", "dflash.lab.stages.rank", "dflash.training.run"),
    packages=("dflash.training", "dflash.data", "dflash.target", "dflash.model"),
    watchers=("dflash.training.trackers",),
)
FACTS = "train.json"
DIFF = "source.diff"  # of the code that trained; empty for a clean tree


@dataclass(frozen=True)
class Trained:
    """A drafter that was trained here, or a checkpoint from elsewhere.

    Attributes:
        name: of the store entry, or from the content of the checkpoint; part of other keys.
        checkpoint: folder in the public layout.
        facts: counts, seconds, loss and provenance of the run; empty for one from elsewhere.
    """

    name: str
    checkpoint: Path
    facts: dict[str, Any]

    @classmethod
    def of_entry(cls, entry: Path) -> Trained:
        """The drafter of a store entry."""
        facts = dict(read_json(entry / FACTS))
        return cls(entry.name, entry / facts["path"], facts)

    @staticmethod
    def readable(entry: Path) -> bool:
        """Whether this version of the lab wrote the entry, or one with the same facts."""
        return {"path", "config"} <= read_json(entry / FACTS).keys()

    @classmethod
    def of_checkpoint(cls, folder: Path) -> Trained:
        """A drafter in the public layout, named by its bytes.

        Raises:
            UserError: the folder holds no checkpoint.
        """
        weights = sorted(folder.glob("*.safetensors"))
        if not weights or not (folder / "config.json").is_file():
            raise UserError.of("drafter", str(folder), "a folder with config.json and safetensors")
        digest = hashlib.sha256()
        for path in (folder / "config.json", *weights):
            digest.update(path.read_bytes())
        return cls(f"checkpoint-{digest.hexdigest()[:16]}", folder, {})

    def facts_at(self, steps: int) -> dict[str, Any]:
        """The facts, with the hashes of what the first ``steps`` steps were fed."""
        if steps == self.facts["steps"]:
            return self.facts
        chain = read_json(self.checkpoint.parent / FED)["chain"]
        return self.facts | dict(zip(FED_HASHES, chain[steps - 1], strict=True))

    @property
    def hf_config(self) -> Qwen3Config:
        """The checkpoint's own config."""
        config: Qwen3Config = Qwen3Config.from_pretrained(self.checkpoint)
        return config

    @property
    def switches(self) -> DrafterSwitches:
        """What the checkpoint says it is."""
        return switches_of(self.hf_config)

    def load(self, target: Target) -> DFlashDraftModel:
        """The drafter in evaluation mode, on the target's device and in its dtype.

        Raises:
            UserError: the weights cannot be read.
        """
        try:  # not .to(dtype): it would round the rotary frequencies, too
            drafter = DFlashDraftModel.from_pretrained(self.checkpoint, dtype=target.dtype)
        except SafetensorError as error:
            raise UserError(f"{self.checkpoint} is not readable: {error}") from None
        return drafter.to(target.device).eval()


def train_key(
    config: LabConfig, seed: int, identity: dict[str, str], rollouts: str, features: str | None
) -> Key:
    """Key of one run, from the target's identity and the names of the entries it reads."""
    train = {k: v for k, v in asdict(config.train).items() if k not in IRRELEVANT}
    train["precision"] = precision_of(config.train.precision, device_of(config.target.device))
    online = config.data.mode == "online"  # offline, the features' own key says it
    parts = {
        "drafter": asdict(config.drafter),
        "train": train,
        "online": config.data.feature_dtype if online else None,
        "seed": seed,
        "mask_token_id": config.target.mask_token_id,
        "target": identity,
    }
    inputs = {"rollouts": rollouts, "features": features or ""}
    return CODE.key("train", plain(parts), inputs)


@dataclass(frozen=True)
class Training:
    """One run that is to be in the store.

    Attributes:
        features: None for a drafter that reads none, and when ``data.mode`` is ``online``.
    """

    lab: Lab
    config: LabConfig
    seed: int
    identity: dict[str, str]
    answers: Answers
    features: Features | None

    @property
    def key(self) -> Key:
        """Of the run's entry."""
        features = None if self.features is None else self.features.entry.name
        return train_key(self.config, self.seed, self.identity, self.answers.entry.name, features)

    def build(self) -> Trained:
        """Train, or find the run already trained.

        Raises:
            UserError: a configuration that cannot be trained.
            StoreError: damaged entry or no space left.
        """
        return Trained.of_entry(self.lab.store.build(self.key, self.fill))

    def fill(
        self, directory: Path, source: FeatureSource | None = None, pace: Pace = alone
    ) -> None:
        """Train in ``directory``, or go on there.

        Args:
            source: where features come from, when others read from it too.
            pace: lets others train between the steps.
        """
        if not (directory / FACTS).is_file():  # else it was killed between this and the end
            if self.config.train.ranks == 1:
                self.train_here(directory, source, pace)
            else:
                launch_ranks(self, directory)
        for resume_point in directory.glob("*.ckpt"):  # three times the drafter's size
            resume_point.unlink()

    def train_here(
        self, directory: Path, source: FeatureSource | None = None, pace: Pace = alone
    ) -> None:
        """Train in this process, alone or as one of several ranks; the first leaves the results.

        Raises:
            UserError: a configuration that cannot be trained.
        """
        from dflash.training.run import train_drafter  # Lightning takes seconds to import

        config, target = self.config, self.lab.target(self.config.target)
        result = train_drafter(
            config.train,
            config.drafter,
            target,
            self.answers.rollouts(),
            source or feature_source(config, target, self.answers, self.features),
            self.seed,
            directory,
            progress=self.lab.progress,
            pace=pace,
        )
        if is_first_rank():
            (directory / DIFF).write_bytes(source_tree().diff)
            facts = _facts(result, config, self.seed, target, directory)
            write_json(directory / FACTS, facts | {"shared_pass": source is not None})


def _facts(
    result: TrainResult, config: LabConfig, seed: int, target: Target, directory: Path
) -> dict[str, Any]:
    """What the tables say about a run, and what made it."""
    return asdict(result) | {
        "path": Path(result.path).relative_to(directory).as_posix(),
        "device": device_name(str(target.device)),
        "dtype": config.target.dtype,
        "machine": machine_facts(),
        "packages": package_versions(),
        "commit": source_tree().commit,
        "diff_hash": source_tree().diff_hash,
        "config": config.tree(),
        "seed": seed + config.train.seed_shift,
    }


def feature_source(
    config: LabConfig, target: Target, answers: Answers, features: Features | None
) -> FeatureSource | None:
    """Stored features, or the target itself, or nothing for a drafter that reads none."""
    if features is not None:
        return features.open()
    if config.drafter.kv.fusion == "none":
        return None
    taps = resolve_taps(config.drafter.features.taps, target.num_layers)
    return OnlineFeatures(target, answers.rollouts(), taps, config.data.feature_dtype)


def shared_sources(trainings: Sequence[Training]) -> list[FeatureSource]:
    """A source for each of several online runs over the same answers, from one pass."""
    first = trainings[0]
    target = first.lab.target(first.config.target)
    configs = [training.config for training in trainings]
    taps = [resolve_taps(item.drafter.features.taps, target.num_layers) for item in configs]
    shared = SharedFeatures(
        target,
        first.answers.rollouts(),
        taps,
        first.config.data.feature_dtype,
        kept=max(item.train.sequences for item in configs),
    )
    return [shared.reader(chosen) for chosen in taps]
