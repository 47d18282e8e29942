"""One row per arm and benchmark: the numbers that summary.csv, the tables and the figures share."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.columns import decoding_columns, difference_columns, run_columns, tau_columns
from analysis.components import frozen, switches
from analysis.load import Result
from analysis.statistics import RESAMPLES, Interval
from analysis.verdict import MIN_SEEDS, stamps, verdict

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
    others exist. Columns: `analysis.columns`, `p_holm`, `noise_floor`, `stamp`, `speed_stamp` and
    `verdict`.
    """
    rows, decoded = measured(result, headline_source(result)), measured(result, "decode")
    benches = ["all", *sorted(rows["bench"].unique())]
    settings = (seed, resamples)
    records = _records(rows, decoded, result.runs, benches, ALL_ANSWERS, settings)
    if rows["degenerate"].any():
        rows, decoded = rows[~rows["degenerate"]], decoded[~decoded["degenerate"]]
        records += _records(rows, decoded, result.runs, benches, WITHOUT_LOOPS, settings)
    return _judge(pd.DataFrame(records).assign(experiment=result.experiment), result)


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
        first = runs[runs["arm"] == arm].iloc[0]
        own, own_decoded = rows[rows["arm"] == arm], decoded[decoded["arm"] == arm]
        pairs = statistics.pair(own, _to_pair_with(rows, first))
        raced = statistics.pair_speed(own_decoded, _to_pair_with(decoded, first))
        described = run_columns(runs[runs["arm"] == arm])
        for bench in benches:
            records.append(
                {"answers": answers, "arm": arm, "bench": bench}
                | described
                | tau_columns(_at(own, bench), *settings)
                | difference_columns(_at(pairs, bench), *settings)
                | decoding_columns(_at(own_decoded, bench), _at(raced, bench), *settings)
            )
    return records


def _at(rows: pd.DataFrame, bench: str) -> pd.DataFrame:
    return rows if bench == "all" else rows[rows["bench"] == bench]


def _to_pair_with(rows: pd.DataFrame, run: pd.Series) -> pd.DataFrame:
    """The control's answers; none for the control itself and for floors, which have no seeds to
    pair.
    """
    if run["control"] or run["kind"] == "floor":
        return rows.iloc[:0]
    return rows[rows["control"]]


def _judge(table: pd.DataFrame, result: Result) -> pd.DataFrame:
    """Add Holm-adjusted p values, noise floors, stamps and verdicts."""
    table["p_holm"] = np.nan
    for answers in table["answers"].unique():
        family = (table["answers"] == answers) & ~table["invalid"]
        table.loc[family, "p_holm"] = statistics.holm(table.loc[family, "p"].to_numpy())
    rows = table.to_dict("records")
    floor = result.floor
    table["noise_floor"] = [
        np.nan if floor is None else floor.bound(row["bench"], row["paired_seeds"]) for row in rows
    ]
    table["stamp"] = ["; ".join(_stamps(row)) for row in rows]
    table["speed_stamp"] = [
        "; ".join(stamps(row["speed_prompts"], row["speed_seeds"])) if row["speed_prompts"] else ""
        for row in rows
    ]
    control = result.runs[result.runs["control"]]
    arms = result.runs.groupby("arm")
    unmoved = {arm: frozen(own, control, switches(own)) for arm, own in arms}
    table["verdict"] = [_words(row, unmoved[row["arm"]]) for row in table.to_dict("records")]
    first = ["experiment", "answers", "arm", "bench"]
    return table[first + [column for column in table if column not in first]]


def _stamps(row: dict) -> list[str]:
    """What a reader must see beside this row's tau; floors have no seeds."""
    if row["prompts"] == 0:
        return []
    return stamps(row["prompts"], MIN_SEEDS if row["kind"] == "floor" else row["seeds"])


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
        noise_floor=row["noise_floor"],
    )
