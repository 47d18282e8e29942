"""The whole grid on a target of a few thousand parameters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from analysis.load import load
from dflash.lab.config import compose_config
from dflash.lab.executors import job as jobs
from dflash.lab.experiment import load_experiment
from dflash.lab.results import read_table
from dflash.lab.run import run_experiment
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info
from dflash.lab.store import MANIFEST, Store
from dflash.model.errors import UserError
from dflash.training import run as training


@pytest.fixture
def start(lab, small, small_overrides, tmp_path):
    """Run an experiment, by default the one with two arms."""

    def run(*overrides: str, name: str = small, lab: Lab = lab, where: Path = tmp_path):
        experiment = load_experiment(name, [*small_overrides, *overrides])
        return run_experiment(lab, experiment, where / "results")

    return run


def built(lab: Lab) -> dict[str, int]:
    """Entry -> time of completion."""
    return {
        path.parent.name: path.stat().st_mtime_ns for path in lab.store.root.glob(f"*/{MANIFEST}")
    }


def without_seconds(rows):
    timed = ("train_seconds", "ar_seconds", "spec_seconds", "t_draft", "t_verify", "t_host")
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]


def tables(directory: Path) -> dict[str, list[dict[str, object]]]:
    names = ("runs", "prompts", "steps", "survival")
    rows = {name: without_seconds(read_table(directory / f"{name}.parquet")) for name in names}
    return json.loads(json.dumps(rows), parse_constant=str)  # NaN is unequal to itself


def test_a_grid_is_run_once_and_read_back(start, lab, small, tmp_path):
    finished = start()
    assert finished.failed == []
    result = load(small, tmp_path / "results")
    runs = result.runs.set_index("run_id")
    cells = [f"{arm}-s{seed}" for arm in ("control", "bare", "leaky") for seed in (0, 1)]
    assert list(runs.index) == [*cells, "floor-unigram", "floor-ngram"]
    assert list(runs[runs["control"]].index) == ["control-s0", "control-s1"]
    assert list(runs[runs["invalid"]].index) == ["leaky-s0", "leaky-s1"]
    assert (runs["status"] == "ok").all()
    assert (runs.loc[cells, "steps"] == 2).all()
    assert (runs.loc[cells, "parameters"] > 0).all()
    diff = json.loads(runs.loc["bare-s0", "config_diff"])
    assert diff == {"drafter.attention.qk_norm": ["both", "none"]}

    replay = result.prompts[result.prompts["source"] == "replay"]
    decode = result.prompts[result.prompts["source"] == "decode"]
    assert replay.groupby("run_id").size().to_dict() == dict.fromkeys(runs.index, 3)
    assert decode.groupby("run_id").size().to_dict() == dict.fromkeys(cells, 1)
    assert decode["lossless"].all()
    assert set(decode["device"]) == set(result.runs.loc[result.runs["control"], "device"])
    assert set(result.prompts["bench"]) == {"vicuna"}
    walked = result.steps.groupby(["run_id", "source", "prompt_id"])["emitted"].sum()
    counted = result.prompts.set_index(["run_id", "source", "prompt_id"])["emitted"]
    counted = counted[counted > 0]
    assert walked.to_dict() == counted.to_dict()
    assert set(result.survival["slot"]) == {1, 2, 3}
    card = json.loads((finished.directory / "data_card.json").read_text())
    assert card["train"]["total"]["prompts"] == 12
    config = yaml.safe_load((finished.directory / "config.yaml").read_text())
    assert config["arms"]["bare"] == {"drafter.attention.qk_norm": "none"}
    assert config["control"]["drafter"]["block_size"] == 4

    said = lab.said
    before, first = built(lab), tables(finished.directory)
    fresh = Lab(lab.store, said.append, progress=False)
    fresh.target = lambda _: pytest.fail("a finished grid needs no model")  # type: ignore[method-assign]
    start(lab=fresh)
    assert built(fresh) == before
    assert tables(finished.directory) == first
    plan = next(text for text in reversed(said) if text.startswith(small))
    assert "to do: nothing; 23 of 23 entries are stored" in plan
    assert "drafter.attention.qk_norm: both -> none" in plan
    assert "leaky INVALID" in plan


def test_arms_share_rollouts_and_features(start, lab):
    start("seeds=[0]")
    stages = [name.rpartition("-")[0] for name in built(lab)]
    counts = {stage: stages.count(stage) for stage in set(stages)}
    shared = {"target": 1, "rollouts": 2, "features": 2, "floor": 2, "autoregressive": 1}
    assert counts == shared | {"train": 3, "replay": 3, "decode": 3}


def test_a_failing_cell_is_a_row_and_the_rest_goes_on(start, lab, small, tmp_path, monkeypatch):
    honest = training.train_drafter

    def fragile(config, switches, *rest, **named):
        if switches.attention.qk_norm == "none":
            raise RuntimeError("it\nbroke")
        return honest(config, switches, *rest, **named)

    monkeypatch.setattr(training, "train_drafter", fragile)
    finished = start()
    assert finished.failed == [
        ("bare", 0, "RuntimeError: it broke"),
        ("bare", 1, "RuntimeError: it broke"),
    ]
    runs = load(small, tmp_path / "results").runs.set_index("run_id")
    assert runs.loc["bare-s0", "status"] == "failed"
    assert runs.loc["bare-s0", "error"] == "RuntimeError: it broke"
    assert (runs.drop(["bare-s0", "bare-s1"])["status"] == "ok").all()

    monkeypatch.setattr(training, "train_drafter", honest)
    before = built(lab)
    assert start().failed == []
    after = built(lab)
    assert before.items() <= after.items(), "what had succeeded must not be redone"
    new = sorted(name.rpartition("-")[0] for name in after.keys() - before.keys())
    assert new == ["decode"] * 2 + ["replay"] * 2 + ["train"] * 2


def test_an_interrupted_grid_ends_as_an_uninterrupted_one(start, lab, small, tmp_path, monkeypatch):
    honest = jobs.run_cell
    calls = []

    def interrupted(lab, config, info, seed):
        calls.append(seed)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return honest(lab, config, info, seed)

    monkeypatch.setattr(jobs, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start()
    partial = load(small, tmp_path / "results").runs
    assert sorted(set(partial.loc[partial["kind"] == "drafter", "seed"])) == [0]
    monkeypatch.setattr(jobs, "run_cell", honest)
    resumed = tables(start().directory)
    whole = Lab(Store(tmp_path / "other"), lab.say, progress=False)
    assert resumed == tables(start(lab=whole, where=tmp_path / "again").directory)


def test_what_cannot_work_fails_before_anything_runs(start, lab, write_experiment):
    for override, message in (
        ("drafter.features.taps=[1,1]", "distinct layer ids"),
        ("drafter.features.taps=[1,6]", "layers 0 to 5"),
        ("target.mask_token_id=3", "stop token"),
        ("target.mask_token_id=null", "mask_token_id=None"),
        ("decode.width=9", "decode.width=9"),
        ("target.source=/nowhere/at/all", "target.source"),
        ("target.source=package:not-there", "pip install not-there"),
    ):
        with pytest.raises(UserError, match=message):
            start(override)
    bad_arm = write_experiment("  deep: {drafter.features.taps: [0, 9]}", "bad_arm")
    with pytest.raises(UserError, match="layers 0 to 5"):
        start(name=bad_arm)
    assert not any(name.startswith(("rollouts", "train")) for name in built(lab))


def test_an_arm_that_breaks_an_invariant_is_refused_before_anything_runs(
    start, lab, write_experiment
):
    promise = "invariants:\n  - same parameters except bare\n"
    arms = "  bare: {drafter.attention.qk_norm: none}\n  k_only: {drafter.attention.qk_norm: k}"
    name = write_experiment(arms, "promised", promise)
    with pytest.raises(UserError, match=r"k_only breaks 'same parameters except bare': \d+, the"):
        start(name=name)
    assert not any(entry.startswith(("rollouts", "train")) for entry in built(lab))


def test_the_cells_of_a_grid_are_marked_by_their_levels(start, write_experiment, tmp_path):
    grid = (
        "grid:\n  drafter.num_layers: [1, 2]\n  drafter.attention.block: [bidirectional, causal]\n"
    )
    start("seeds=[0]", name=write_experiment("  slow: {train.lr: 0.5}", "crossed", grid))
    runs = load("crossed", tmp_path / "results").runs.set_index("arm")
    assert (runs["status"] == "ok").all()
    levels = {arm: list(json.loads(text).values()) for arm, text in runs["levels"].items()}
    assert levels == {
        "control": [1, "bidirectional"],
        "block-causal": [1, "causal"],
        "num_layers-2": [2, "bidirectional"],
        "num_layers-2+block-causal": [2, "causal"],
        "slow": [],
        "floor:unigram": [],
        "floor:ngram": [],
    }


def test_a_mask_token_that_the_target_may_use_is_pointed_out(lab, small, small_overrides, tmp_path):
    config = compose_config(small_overrides).target
    target_info(lab, config)
    assert "target.mask_token_id=4" in lab.said[-1]
    rows = lab.target(config).embedding.weight
    with torch.no_grad():
        rows[config.mask_token_id] = rows[config.mask_token_id + 1]
    quiet: list[str] = []
    target_info(Lab(Store(tmp_path / "new"), quiet.append, _loaded=lab._loaded), config)
    assert [text for text in quiet if "mask_token_id" in text] == []


def test_a_shared_store_does_not_remember_the_device_of_another_machine(
    lab, small, small_overrides, monkeypatch
):
    config = compose_config(small_overrides).target
    assert target_info(lab, config).device.startswith("cpu ")
    monkeypatch.setattr("dflash.lab.stages.target.device_name", lambda device: f"other {device}")
    assert target_info(lab, config).device == "other cpu"


def test_a_damaged_entry_stops_the_run_with_its_name(start, lab):
    start("seeds=[0]")
    (entry,) = {path for path in lab.store.entries("rollouts") if (path / "overlap.json").exists()}
    file = entry / "rollouts.parquet"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"rollouts\.parquet has \d+ bytes"):
        start("seeds=[0]")
    before = built(lab)
    shutil.rmtree(entry)
    assert start("seeds=[0]").failed == []
    assert before.keys() == built(lab).keys()


def test_a_drafter_without_features_needs_none(start, write_experiment):
    name = write_experiment("  tokens: {drafter.kv.fusion: none}", "blind")
    assert start("seeds=[0]", name=name).failed == []


def test_online_training_equals_offline(start, tmp_path):
    overrides = ("seeds=[0]", "data.feature_dtype=float32")
    offline = tables(start(*overrides, where=tmp_path / "a").directory)
    online = tables(start(*overrides, "data.mode=online", where=tmp_path / "b").directory)
    assert online["steps"] == offline["steps"]
    assert online["survival"] == offline["survival"]
