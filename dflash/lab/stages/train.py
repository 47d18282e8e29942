"""Stage "train": one drafter, for one arm and one seed."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from transformers import Qwen3Config

from dflash.data.features import FeatureSource, OnlineFeatures
from dflash.lab.config import LabConfig
from dflash.lab.provenance import device_name, machine_facts, package_versions, source_tree
from dflash.lab.schema import plain
from dflash.lab.stages.answers import Answers
from dflash.lab.stages.common import Code, Lab, read_json, write_json
from dflash.lab.stages.features import Features
from dflash.lab.store import Key
from dflash.model.config import switches_of
from dflash.model.drafter import DFlashDraftModel
from dflash.model.errors import UserError
from dflash.model.switches import DrafterSwitches
from dflash.model.taps import resolve_taps
from dflash.target import Target
from dflash.target.load import device_of
from dflash.training.config import IRRELEVANT
from dflash.training.precision import precision_of

if TYPE_CHECKING:
    from dflash.training.run import TrainResult

CODE = Code(
    roots=("dflash.lab.stages.train", "dflash.training.run"),
    packages=("dflash.training", "dflash.data", "dflash.target", "dflash.model"),
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


def build_drafter(
    lab: Lab,
    config: LabConfig,
    seed: int,
    identity: dict[str, str],
    answers: Answers,
    features: Features | None,
) -> Trained:
    """Train, or find the run already trained.

    Args:
        features: None for a drafter that reads none, and when ``data.mode`` is ``online``.

    Raises:
        UserError: a configuration that cannot be trained.
        StoreError: damaged entry or no space left.
    """
    name = None if features is None else features.entry.name
    key = train_key(config, seed, identity, answers.entry.name, name)

    def work(directory: Path) -> None:
        if not (directory / FACTS).is_file():  # else it was killed between this and the end
            train(directory)
        for resume_point in directory.glob("*.ckpt"):  # three times the drafter's size
            resume_point.unlink()

    def train(directory: Path) -> None:
        from dflash.training.run import train_drafter  # Lightning takes seconds to import

        target = lab.target(config.target)
        result = train_drafter(
            config.train,
            config.drafter,
            target,
            answers.rollouts(),
            _source(config, target, answers, features),
            seed,
            directory,
            progress=lab.progress,
        )
        (directory / DIFF).write_bytes(source_tree().diff)
        write_json(directory / FACTS, _facts(result, config, seed, target, directory))

    return Trained.of_entry(lab.store.build(key, work))


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
        "seed": seed,
    }


def _source(
    config: LabConfig, target: Target, answers: Answers, features: Features | None
) -> FeatureSource | None:
    """Stored features, or the target itself, or nothing for a drafter that reads none."""
    if features is not None:
        return features.open()
    if config.drafter.kv.fusion == "none":
        return None
    taps = resolve_taps(config.drafter.features.taps, target.num_layers)
    return OnlineFeatures(target, answers.rollouts(), taps, config.data.feature_dtype)
