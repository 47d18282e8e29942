"""One row per arm and benchmark: the numbers that summary.csv, the tables and the figures share."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.components import frozen
from analysis.load import Result
from analysis.statistics import CLUSTER, RESAMPLES, Interval
from analysis.verdict import verdict

BASELINE = "same loop, block size 1"
ALL_ANSWERS, WITHOUT_LOOPS = "all", "without loops"
_RUN_COLUMNS = ["run_id", "arm", "seed", "kind", "control", "invalid"]


def measured(result: Result, source: str) -> pd.DataFrame:
    """The rows of `prompts` that count, with their run's arm, seed, kind, control and invalid.

    Only runs that succeeded, only `source` ("replay" or "decode"), at the experiment's lowest
    temperature and each run's widest verification width: the condition the table is about. The
    others stay in prompts.parquet.
    """
    runs = result.runs.loc[result.runs["status"] == "ok", _RUN_COLUMNS]
    rows = result.prompts[result.prompts["source"] == source].merge(
        runs, on="run_id", validate="many_to_one"
    )
    rows = rows[rows["temperature"] == rows["temperature"].min()]
    widest = rows.groupby("run_id")["width"].transform("max")
    return rows[(rows["width"] == widest) | widest.isna()].reset_index(drop=True)


def headline_source(result: Result) -> str:
    """Where tau comes from: replay, which covers every prompt, or decoding where nothing was
    replayed.
    """
    return "replay" if (result.prompts["source"] == "replay").any() else "decode"


def arm_order(runs: pd.DataFrame) -> list[str]:
    """Control first, then the arms as they ran, floors last."""
    first = runs.drop_duplicates("arm")
    rank = np.where(first["control"], 0, np.where(first["kind"] == "floor", 2, 1))
    return first.assign(rank=rank).sort_values("rank", kind="stable")["arm"].tolist()


def summary_table(result: Result, seed: int = 0, resamples: int = RESAMPLES) -> pd.DataFrame:
    """All numbers of the summary, one row per `answers` x `arm` x `bench`; bench "all" pools the
    benchmarks.

    `answers` is "all", and "without loops" too where some answer is degenerate. Holm's correction
    covers every comparison to the control within one kind of `answers`, negative controls
    excepted. Every interval starts from the same bootstrap seed, so that no row depends on which
    others exist.
    """
    rows, decoded = measured(result, headline_source(result)), measured(result, "decode")
    benches = ["all", *sorted(rows["bench"].unique())]
    settings = (seed, resamples)
    records = _records(rows, decoded, result.runs, benches, ALL_ANSWERS, settings)
    if rows["degenerate"].any():
        rows, decoded = rows[~rows["degenerate"]], decoded[~decoded["degenerate"]]
        records += _records(rows, decoded, result.runs, benches, WITHOUT_LOOPS, settings)
    return _judge(pd.DataFrame(records).assign(experiment=result.experiment), result.runs)


def _records(
    rows: pd.DataFrame,
    decoded: pd.DataFrame,
    runs: pd.DataFrame,
    benches: list[str],
    answers: str,
    settings: tuple[int, int],
) -> list[dict[str, object]]:
    records = []
    for arm in arm_order(runs):
        own, own_decoded = rows[rows["arm"] == arm], decoded[decoded["arm"] == arm]
        pairs = _pairs(own, rows, runs[runs["arm"] == arm].iloc[0])
        described = _describe_runs(runs[runs["arm"] == arm])
        for bench in benches:
            records.append(
                {"answers": answers, "arm": arm, "bench": bench}
                | described
                | _tau(_at(own, bench), *settings)
                | _compare(_at(pairs, bench), *settings)
                | _decoding(_at(own_decoded, bench), *settings)
            )
    return records


def _at(rows: pd.DataFrame, bench: str) -> pd.DataFrame:
    return rows if bench == "all" else rows[rows["bench"] == bench]


def _pairs(own: pd.DataFrame, rows: pd.DataFrame, run: pd.Series) -> pd.DataFrame:
    """The arm's answers with the control's; none for the control itself and for floors, which
    have no seeds to pair."""
    if run["control"] or run["kind"] == "floor":
        own = own.iloc[:0]
    return statistics.pair(own, rows[rows["control"]])


def _interval(name: str, interval: Interval) -> dict[str, object]:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _describe_runs(runs: pd.DataFrame) -> dict[str, object]:
    fine = runs[runs["status"] == "ok"]
    return {
        "kind": runs["kind"].iloc[0],
        "control": bool(runs["control"].iloc[0]),
        "invalid": bool(runs["invalid"].any()),
        "failed": int((runs["status"] == "failed").sum()),
        "parameters": fine["parameters"].mean(),
        "train_seconds": fine["train_seconds"].mean(),
        "device": "; ".join(sorted(fine["device"].unique())),
        "dtype": "; ".join(sorted(fine["dtype"].unique())),
    }


def _tau(rows: pd.DataFrame, seed: int, resamples: int) -> dict[str, object]:
    rows = rows[rows["tau"].notna()]
    interval = statistics.mean_tau(rows, np.random.default_rng(seed), resamples)
    pooled = rows["emitted"].sum() / rows["steps"].sum() if len(rows) else np.nan
    counts = {"seeds": int(rows["seed"].nunique()), "prompts": len(rows.drop_duplicates(CLUSTER))}
    return counts | _interval("tau", interval) | {"tau_pooled": pooled}


def _compare(pairs: pd.DataFrame, seed: int, resamples: int) -> dict[str, object]:
    """Paired difference to the control."""
    interval = statistics.paired_difference(pairs, np.random.default_rng(seed), resamples)
    return _interval("difference", interval) | {
        "p": statistics.wilcoxon_p(pairs),
        "difference_se": interval.standard_error,
        "detectable": statistics.smallest_detectable(interval.standard_error),
        "paired_seeds": int(pairs["seed"].nunique()),
        "paired_prompts": len(pairs.drop_duplicates(CLUSTER)),
    }


def _decoding(rows: pd.DataFrame, seed: int, resamples: int) -> dict[str, object]:
    """Speed and losslessness, from real decoding only."""
    passed = rows[rows["lossless"].eq(True)]  # speed of wrong output is no speed
    interval = statistics.speedup(passed, np.random.default_rng(seed), resamples)
    checked = rows["lossless"].dropna()
    return _interval("speedup", interval) | {
        "speedup_baseline": BASELINE,
        "lossless": int(checked.sum()),
        "lossless_checked": len(checked),
    }


def _judge(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Add Holm-adjusted p values and verdicts."""
    table["p_holm"] = np.nan
    for answers in table["answers"].unique():
        family = (table["answers"] == answers) & ~table["invalid"]
        table.loc[family, "p_holm"] = statistics.holm(table.loc[family, "p"].to_numpy())
    control = runs[runs["control"]]
    unmoved = {arm: frozen(own, control) for arm, own in runs.groupby("arm")}
    table["verdict"] = [_words(row, unmoved[row["arm"]]) for row in table.to_dict("records")]
    first = ["experiment", "answers", "arm", "bench"]
    return table[first + [column for column in table if column not in first]]


def _words(row: dict, unmoved: str) -> str:
    if row["prompts"] == 0 and row["failed"]:
        return "failed"
    if row["control"] or row["kind"] == "floor":
        return "invalid" if row["invalid"] else "control" if row["control"] else "floor"
    columns = ["difference", "difference_low", "difference_high", "difference_se"]
    return verdict(
        Interval(*(row[column] for column in columns)),
        row["p_holm"],
        row["paired_prompts"],
        row["paired_seeds"],
        invalid=row["invalid"],
        frozen=unmoved,
    )
