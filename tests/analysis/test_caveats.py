"""What the summary warns of."""

from __future__ import annotations

import pandas as pd
import pytest
import yaml

from dflash.model.errors import UserError
from tests.analysis.reading import Make, at, read


def test_output_that_differs_from_the_targets_is_named(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        prompts = frames["prompts"]
        bad = (prompts["run_id"] == "worse-1") & (prompts["source"] == "decode")
        prompts.loc[prompts.index[bad][0], ["lossless", "first_divergence"]] = [False, 7]

    def slower(frames: dict[str, pd.DataFrame]) -> None:
        change(frames)
        prompts = frames["prompts"]
        prompts.loc[prompts["lossless"].eq(False), "spec_seconds"] *= 100

    slow = make_result(change=slower, experiment="slow")

    text, table = read(make_result(change=change))
    assert "worse is not lossless: 1 of 48 outputs" in text
    # The seconds of an output that differs count for nothing (T-GATE1).
    assert at(table, "worse")["speedup"] == pytest.approx(at(read(slow)[1], "worse")["speedup"])


def test_perfect_acceptance_is_suspect(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        steps = frames["steps"]
        perfect = steps["run_id"].str.startswith("worse-")
        answer = ["run_id", "bench", "prompt_id", "turn", "source"]
        last = steps["step"] == steps.groupby(answer)["step"].transform("max")
        steps.loc[perfect & ~last, "emitted"] = int(frames["prompts"]["width"].max())
        steps.loc[perfect & last, "emitted"] = 1  # cut by the answer's end

    assert "worse is accepted almost whole" in read(make_result(change=change))[0]
    assert "almost whole" not in read(make_result(experiment="plain"))[0]


def test_runs_that_are_not_matched_are_named(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        runs = frames["runs"]
        runs.loc[runs["arm"] == "worse", "dtype"] = "bfloat16"

    assert "Runs differ in dtype (bfloat16, float32)" in read(make_result(change=change))[0]


@pytest.mark.parametrize(
    ("init", "diff", "said"),
    [
        ("target", {"drafter.rope.context": False}, True),
        ("target", {"drafter.attention.qk_norm": "none"}, False),
        ("random", {"drafter.rope.context": False}, False),
    ],
)
def test_a_start_fitted_to_the_control_is_named(
    make_result: Make, init: str, diff: dict, said: bool
) -> None:
    directory = make_result()
    config = {"question": "q?", "control": {"train": {"init": init}}, "arms": {"worse": diff}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    assert ("worse starts from weights that were fitted" in read(directory)[0]) is said


def test_arms_that_were_fed_otherwise_are_named(make_result: Make) -> None:
    """From the tables alone: hashes of an arm beside its control's of the same seed."""

    def change(frames: dict[str, pd.DataFrame]) -> None:
        runs = frames["runs"]
        other = (runs["arm"] == "worse") & (runs["seed"] == 1)
        runs.loc[other, ["anchor_hash", "init_hash"]] = "other"
        wider = runs["arm"] == "better"
        runs.loc[wider, "init_hash"] = "other"
        runs.loc[wider, "parameters"] = 2e7

    arms = {"control": 0.0, "worse": -0.12, "better": 0.12, "floor:unigram": -0.3}
    directory = make_result(arms=arms, change=change)
    text, _ = read(directory)
    assert "* worse and the control differ in anchors, starting values: " in text
    assert "better and the control" not in text
    assert "floor:unigram and the control" not in text
    (directory / "matched.json").write_text('{"sentence": "Arms matched, except as declared."}')
    assert "and the control differ in" not in read(directory)[0], "one of the two has the word"


def test_matched_arms_are_said_to_be(make_result: Make) -> None:
    directory = make_result()
    assert "the control differ in" not in read(directory)[0]
    (directory / "matched.json").write_text('{"sentence": "Arms matched: all of it."}')
    assert "\n\nArms matched: all of it.\n\n" in read(directory)[0]
    (directory / "matched.json").write_text("{")
    with pytest.raises(UserError, match=r"matched\.json is not readable"):
        read(directory)


def test_arms_of_equal_budget_are_named(make_result: Make) -> None:
    directory = make_result()
    config = {"question": "q?", "control": {}, "arms": {"worse": {"drafter.x": 1}}}
    config |= {"match": "tokens", "matched": {"worse": {"train.steps": 9}}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    assert "* Arms have the control's tokens: worse by train.steps=9." in read(directory)[0]
    (directory / "config.yaml").write_text(yaml.safe_dump(config | {"match": "", "matched": {}}))
    assert "Arms have the control's" not in read(directory)[0]
