"""Stage "rollouts": prompts with the target's own answers, shared by every arm and seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from dflash.data.overlap import drop_overlap
from dflash.data.prompts import load_prompts, prompt_versions
from dflash.data.rollouts import Rollout, build_rollouts, read_rollouts, write_rollouts
from dflash.data.wording import Prompt, set_name
from dflash.lab.config import LabConfig
from dflash.lab.stages.common import Code, Lab, read_json, write_json
from dflash.lab.store import Key

CODE = Code(
    roots=("dflash.lab.stages.answers", "dflash.data.rollouts"),
    packages=("dflash.data", "dflash.target", "dflash.metrics", "dflash.model"),
)
Split = Literal["train", "eval"]
ROLLOUTS, FACTS, OVERLAP = "rollouts.parquet", "answers.json", "overlap.json"


@dataclass(frozen=True)
class Answers:
    """The rollouts of one split, read when they are needed."""

    entry: Path
    temperature: float

    @cached_property
    def _rollouts(self) -> list[Rollout]:
        return read_rollouts(self.entry / ROLLOUTS)

    def rollouts(self) -> list[Rollout]:
        """In the order of the prompt sets."""
        return self._rollouts

    def benches(self) -> list[str]:
        """The prompt set of every rollout."""
        return [set_name(rollout.prompt_id) for rollout in self._rollouts]

    def facts(self) -> dict[str, Any]:
        """``template_hash``, and ``source``: how many answers are shipped and how many fresh."""
        return dict(read_json(self.entry / FACTS))


def answers_key(config: LabConfig, split: Split, identity: dict[str, str]) -> Key:
    """Key of a split's rollouts; training depends on evaluation, whose prompts it leaves out."""
    data = config.data
    counts = [data.eval, data.train] if split == "train" else [data.eval]
    asked = sorted({name for sets in counts for name, count in sets.items() if count})
    parts = {
        "split": split,
        "target": identity,
        "eval": data.eval,
        "prompts": prompt_versions(asked),
        "new_tokens": data.train_new_tokens if split == "train" else data.eval_new_tokens,
        "temperature": data.temperature,
        "seed": data.seed,
        "rollouts": data.rollouts,
    }
    if split == "train":
        parts["train"] = data.train
    return CODE.key("rollouts", parts, {})


def build_answers(lab: Lab, config: LabConfig, split: Split, identity: dict[str, str]) -> Answers:
    """The target's answers to the prompts of one split.

    Raises:
        UserError: unknown or empty prompt set, or answers that fail the data gates.
        StoreError: damaged entry or no space left.
    """
    key = answers_key(config, split, identity)

    def work(directory: Path) -> None:
        prompts = _prompts(config, split, directory)
        lab.say(f"answers of {config.target.name} to {len(prompts)} prompts ({split})")
        target = lab.target(config.target)
        rollouts = build_rollouts(
            target,
            prompts,
            key.config["new_tokens"],
            config.data.temperature,
            config.data.seed,
            directory,
            shipped=config.data.rollouts == "shipped",
            progress=lab.progress,
        )
        write_rollouts(directory / ROLLOUTS, rollouts)
        shards = directory.glob("turn*-shard*.parquet")
        fresh = sum(pq.read_metadata(shard).num_rows for shard in shards)
        source = {"shipped": len(rollouts) - fresh, "fresh": fresh}
        write_json(directory / FACTS, {"template_hash": target.template_hash, "source": source})

    return Answers(lab.store.build(key, work), config.data.temperature)


def _prompts(config: LabConfig, split: Split, directory: Path) -> list[Prompt]:
    evaluation = _load(config.data.eval, config.data.seed)
    if split == "eval":
        return evaluation
    kept, report = drop_overlap(_load(config.data.train, config.data.seed), evaluation)
    write_json(directory / OVERLAP, report.as_dict())
    return kept


def _load(sets: dict[str, int], seed: int) -> list[Prompt]:
    return [
        prompt
        for name, count in sets.items()
        if count
        for prompt in load_prompts(name, count, seed)
    ]
