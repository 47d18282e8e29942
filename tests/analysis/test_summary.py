"""summary.csv and summary.md for whole, partial and broken experiments."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.verdict import conclude
from dflash.model.errors import UserError
from tests.analysis.reading import Make, at, read, write


def test_planted_effects_get_their_verdicts(make_result: Make) -> None:
    arms = {"control": 0.0, "worse": -0.12, "better": 0.12, "same": 0.0, "leak": 0.2}
    text, table = read(make_result(arms=arms))
    assert at(table, "worse")["verdict"] == "worse"
    assert at(table, "better")["verdict"] == "better"
    assert at(table, "same")["verdict"].startswith("no evidence of a difference (smallest")
    assert at(table, "leak")["verdict"] == "invalid"
    assert at(table, "control")["verdict"] == "control"
    assert text.count("leak (INVALID)") >= 4  # stamped in every table
    assert np.isnan(at(table, "leak")["p_holm"])
    assert at(table, "better")["p_holm"] > at(table, "better")["p"]


def test_tau_is_the_mean_over_prompts_and_seeds(make_result: Make) -> None:
    directory = make_result()
    _, table = read(directory)
    prompts = pd.read_parquet(directory / "prompts.parquet")
    rows = prompts[prompts["run_id"].str.startswith("worse-") & (prompts["source"] == "replay")]
    seeds = [group["tau"].mean() for _, group in rows.groupby("run_id")]
    assert at(table, "worse")["tau"] == pytest.approx(np.mean(seeds))
    assert at(table, "worse")["tau_pooled"] == pytest.approx(
        rows["emitted"].sum() / rows["steps"].sum()
    )
    assert at(table, "worse")["prompts"] == 34
    assert at(table, "worse", "mt_bench")["prompts"] == 10  # two turns each


def test_results_with_and_without_loops_are_both_shown(make_result: Make) -> None:
    directory = make_result()
    text, table = read(directory)
    prompts = pd.read_parquet(directory / "prompts.parquet")
    rows = prompts[
        prompts["run_id"].str.startswith("control-")
        & (prompts["source"] == "replay")
        & ~prompts["degenerate"]
    ]
    assert at(table, "control", answers="without loops")["tau"] == pytest.approx(rows["tau"].mean())
    assert "## Without looping answers" in text
    assert "4 of 44 answers run into a loop" in text


def test_one_seed_gives_numbers_but_no_winner(make_result: Make) -> None:
    text, table = read(make_result(arms={"control": 0.0, "worse": -0.2}, seeds=[0]))
    row = at(table, "worse")
    assert row["verdict"] == "single seed"
    assert row["difference_high"] < 0
    assert "Single seed" in text
    assert "| control | 1 TOO FEW |" in text
    assert set(table.loc[table["answers"] == "all", "stamp"]) == {"single seed"}


def test_every_row_on_few_prompts_is_stamped(make_result: Make) -> None:
    arms = {"control": 0.0, "worse": -0.2, "floor:unigram": -0.4}
    text, table = read(make_result(arms=arms, benches={"gsm8k": 9, "mt_bench": 10}))
    few = table[(table["bench"] == "gsm8k") & (table["answers"] == "all")]
    assert list(few["stamp"]) == ["too few prompts (9)"] * 3
    for arm in arms:
        assert pd.isna(at(table, arm)["stamp"])
    assert text.count("gsm8k (n=9) TOO FEW") == 2  # drafters and floors
    assert "mt_bench (n=10) TOO FEW" not in text


def test_effect_sizes_and_the_next_run_are_shown(make_result: Make) -> None:
    text, table = read(make_result(arms={"control": 0.0, "worse": -0.12}))
    row = at(table, "worse")
    assert row["relative_percent"] == pytest.approx(
        100 * row["difference"] / at(table, "control")["tau"]
    )
    assert row["better_share"] + row["equal_share"] + row["worse_share"] == pytest.approx(1)
    assert row["cohens_dz"] < 0
    assert row["rank_biserial"] < 0
    assert f"| {row['worse_share']:.0%} " in text
    assert f"34 → {row['halving_prompts']:.0f}" in text
    assert at(table, "worse", "mt_bench")["cohens_dz"] < 0  # every bench has its own


def test_arms_that_are_equal_are_said_to_be(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        prompts = frames["prompts"]
        control = prompts[prompts["run_id"].str.startswith("control-")]
        again = control.assign(run_id=control["run_id"].str.replace("control", "again"))
        frames["prompts"] = pd.concat([control, again])

    text, table = read(make_result(arms={"control": 0.0, "again": 0.0}, change=change))
    words = "no evidence of a difference (all paired answers are equal)"
    assert at(table, "again")["verdict"] == words
    assert at(table, "again")["equal_share"] == 1
    assert at(table, "again")["speed_ratio"] == pytest.approx(1)
    assert "34 → ?" in text


def test_one_arm_has_nothing_to_compare(make_result: Make) -> None:
    text, table = read(make_result(arms={"control": 0.0}))
    assert "No arm to compare." in text
    assert table["difference"].isna().all()


def test_failed_cell_is_listed_and_not_averaged(make_result: Make) -> None:
    arms = {"control": 0.0, "worse": -0.1}
    text, table = read(make_result(arms=arms, failed={"worse": [1]}))
    assert "* worse, seed 1: RuntimeError: out of memory\n" in text
    row = at(table, "worse")
    assert (row["seeds"], row["paired_seeds"], row["failed"]) == (2, 2, 1)
    assert row["verdict"] == "too few seeds (2)"
    assert "2 seed(s) only" in text


def test_arm_and_control_that_failed_altogether(make_result: Make) -> None:
    text, table = read(make_result(failed={"worse": [0, 1, 2]}))
    assert at(table, "worse")["verdict"] == "failed"
    assert np.isnan(at(table, "worse")["tau"])
    assert at(table, "control")["tau"] > 1
    assert "| worse   | 0 " in text


def test_control_that_failed_leaves_no_comparison(make_result: Make) -> None:
    _, table = read(make_result(failed={"control": [0, 1, 2]}))
    assert at(table, "worse")["verdict"].startswith("not compared")
    assert at(table, "control")["verdict"] == "failed"


def test_everything_failed(make_result: Make) -> None:
    text, _ = read(make_result(failed={"control": [0, 1, 2], "worse": [0, 1, 2]}, change=no_rows))
    assert "No run succeeded" in text


def no_rows(frames: dict[str, pd.DataFrame]) -> None:
    """Tables of an experiment without one answer: columns, but no rows."""
    columns = {
        "prompts": "run_id bench prompt_id domain turn temperature width steps emitted tau "
        "degenerate source device ar_seconds spec_seconds lossless first_divergence",
        "steps": "run_id bench prompt_id turn source step anchor accepted emitted t_draft "
        "t_verify t_host",
        "survival": "run_id bench slot reached accepted censored labelled correct",
    }
    for name, names in columns.items():
        frames[name] = pd.DataFrame(columns=names.split())


def test_only_replayed_answers(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        prompts = frames["prompts"]
        frames["prompts"] = prompts[prompts["source"] == "replay"]

    text, _ = read(make_result(change=change))
    assert "Losslessness was not checked" in text


def test_experiment_without_runs_is_the_users_mistake(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        frames["runs"] = frames["runs"].iloc[:0]

    directory = make_result(change=change)
    with pytest.raises(UserError, match="has not run yet"):
        write(directory)
    assert not (directory / "summary.md").exists()


def test_floors_only(make_result: Make) -> None:
    text, table = read(make_result(arms={"floor:unigram": -0.4, "floor:ngram": -0.3}))
    assert "## Floors" in text
    assert set(table["verdict"]) == {"floor"}
    assert conclude(table) == []


def test_few_prompts_per_bench_still_allow_a_verdict_over_all(make_result: Make) -> None:
    arms = {"control": 0.0, "worse": -0.25}
    text, table = read(make_result(arms=arms, benches={"gsm8k": 9, "humaneval": 9}))
    assert at(table, "worse", "gsm8k")["verdict"] == "too few prompts (9)"
    assert at(table, "worse")["verdict"] == "worse"
    assert "gsm8k (9), humaneval (9)" in text


def test_a_verdict_on_what_never_moved_is_refused(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        runs = frames["runs"]
        runs.loc[runs["run_id"] == "control-1", "moved"] = '{"q_norm": 0.0, "layers.0": 0.05}'
        runs.loc[runs["arm"] == "no_qknorm", "config_diff"] = (
            '{"drafter.attention.qk_norm": ["both", "none"]}'
        )

    arms = {"control": 0.0, "no_qknorm": -0.2, "shallow": -0.2}
    text, table = read(make_result(arms=arms, change=change))
    assert at(table, "no_qknorm")["verdict"] == "refused (q_norm never moved in the control)"
    assert at(table, "shallow")["verdict"] == "worse"
    assert "no_qknorm is refused a verdict: q_norm never moved in the control." in text
    assert "fc 0.01, layers.0 0.05, q_norm 0.\n" in text


def test_wider_and_hotter_rows_are_chosen_not_mixed(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        prompts = frames["prompts"]
        narrow = prompts.assign(width=4, tau=1.0)
        hot = prompts.assign(temperature=1.0, tau=1.0)
        frames["prompts"] = pd.concat([narrow, hot, prompts])

    plain = read(make_result(experiment="plain"))[1]
    text, table = read(make_result(change=change))
    pd.testing.assert_frame_equal(
        table.drop(columns="experiment"), plain.drop(columns="experiment")
    )
    assert "prompts.parquet only: temperature 1." in text


def test_answers_of_one_token_have_no_tau(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        prompts = frames["prompts"]
        short = prompts["prompt_id"] == "gsm8k/5"
        prompts.loc[short, ["steps", "emitted"]] = 0
        prompts.loc[short, "tau"] = np.nan

    text, table = read(make_result(change=change))
    assert at(table, "control")["prompts"] == 33
    assert "answers without a step" in text


def test_a_second_summary_is_the_same_and_leaves_no_temporary_file(make_result: Make) -> None:
    directory = make_result()
    first = write(directory).read_bytes(), (directory / "summary.csv").read_bytes()
    second = write(directory).read_bytes(), (directory / "summary.csv").read_bytes()
    assert first == second
    assert not list(directory.glob("*.tmp*"))


def test_conclusions_are_computed(make_result: Make) -> None:
    _, table = read(make_result(arms={"control": 0.0, "worse": -0.12}))
    control, worse = conclude(table)
    assert f"{at(table, 'control')['tau']:.3f}" in control
    assert worse.startswith("worse: worse. Its paired difference to the control is -0.")
