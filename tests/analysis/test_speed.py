"""Speed in summary.csv and summary.md: from real decoding, on equal devices, stamped."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.analysis.reading import Make, at, read


def test_speedup_is_the_ratio_of_decoded_seconds(make_result: Make) -> None:
    directory = make_result()
    text, table = read(directory)
    prompts = pd.read_parquet(directory / "prompts.parquet")
    rows = prompts[prompts["run_id"].str.startswith("control-") & (prompts["source"] == "decode")]
    expected = rows["ar_seconds"].sum() / rows["spec_seconds"].sum()
    assert at(table, "control")["speedup"] == pytest.approx(expected)
    assert at(table, "control")["speedup_baseline"] == "same loop, block size 1"
    assert "same loop, block size 1" in text
    assert at(table, "control")["lossless"] == len(rows)


def test_answers_that_were_not_timed_have_no_speedup(make_result: Make) -> None:
    def change(frames: dict[str, pd.DataFrame]) -> None:
        frames["prompts"][["ar_seconds", "spec_seconds"]] = np.nan

    text, table = read(make_result(change=change))
    assert table["speedup"].isna().all()
    assert "| control | 0 " in text
    assert table["speed_stamp"].isna().all()


def test_speeds_of_unlike_devices_are_not_compared(make_result: Make) -> None:
    """Decoding may run on another machine than training, and arms on different ones."""

    def change(frames: dict[str, pd.DataFrame]) -> None:
        prompts = frames["prompts"]
        decoded = prompts["source"] == "decode"
        prompts.loc[decoded, "device"] = "H200"
        prompts.loc[decoded & prompts["run_id"].str.startswith("worse-"), "device"] = "A100"

    arms = {"control": 0.0, "worse": -0.12, "better": 0.12}
    text, table = read(make_result(arms=arms, change=change))
    assert np.isnan(at(table, "worse")["speed_ratio"])
    assert at(table, "worse")["speedup"] > 0
    assert at(table, "better")["speed_ratio"] == pytest.approx(1)
    assert "* Decoded on device A100, H200.\n" in text
    assert "* Speeds are compared only where both answers were decoded on equal devices." in text
    plain, _ = read(make_result(experiment="plain"))
    assert "Decoded on device" not in plain
    assert "equal devices" not in plain


def test_speed_on_few_prompts_is_stamped_though_tau_is_not(make_result: Make) -> None:
    """Replay covers every prompt, decoding the first few of each bench."""
    text, table = read(make_result(benches={"gsm8k": 12, "humaneval": 12}))
    row = at(table, "control")
    assert row["prompts"] == 24
    assert np.isnan(row["stamp"])
    assert (row["speed_prompts"], row["speed_stamp"]) == (8, "too few prompts (8)")
    assert "| control | 8 TOO FEW |" in text
    more = {"gsm8k": 12, "humaneval": 12, "mt_bench": 10}
    text, table = read(make_result(benches=more, seeds=(0, 1), experiment="more"))
    assert at(table, "control")["speed_stamp"] == "too few seeds (2)"
    assert "| control | 12 " in text
