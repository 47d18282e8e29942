"""Write summary.csv and summary.md of one experiment (design §9)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.caveats import caveats, failed_cells
from analysis.columns import BASELINE
from analysis.factorial import grid_cells
from analysis.load import Result
from analysis.markdown import NOTHING, markdown_table, number, with_interval
from analysis.table import ALL_ANSWERS, WITHOUT_LOOPS
from analysis.verdict import MIN_PROMPTS, MIN_SEEDS
from dflash.target.files import replacing


def save(result: Result, table: pd.DataFrame, effects: pd.DataFrame) -> Path:
    """Write the files into the result's folder and return the path of summary.md.

    `table` is the `summary_table` of `result` and `effects` its `contrasts`; summary.csv and, for
    a grid, contrasts.csv are those tables unrounded. All replace older ones atomically.
    """
    for name, frame in {"summary.csv": table, "contrasts.csv": effects}.items():
        if frame.empty:
            (result.directory / name).unlink(missing_ok=True)
            continue
        with replacing(result.directory / name) as path:
            frame.to_csv(path, index=False)
    with replacing(result.directory / "summary.md") as path:
        path.write_text(render(result, table, effects), encoding="utf-8")
    return result.directory / "summary.md"


def render(result: Result, table: pd.DataFrame, effects: pd.DataFrame) -> str:
    """The text of summary.md: tau per arm and bench, differences with verdicts, speed, floors,
    caveats.
    """
    everything = table[table["answers"] == ALL_ANSWERS]
    drafters = everything[everything["kind"] == "drafter"]
    sections = [
        f"# {result.experiment}",
        str(result.config.get("question", "")),
        "Tokens emitted per target call (τ): mean over prompts, averaged over seeds, 95% interval.",
        _tau_table(drafters),
        str(result.matched.get("sentence", "")),
        "## Difference to the control\n\nPaired by prompt and seed; p: Wilcoxon signed-rank over "
        "prompts; Holm's adjustment covers the rows of this table.",
        _difference_table(drafters),
        "### Size of the difference\n\nOver all benches: in percent of the control's τ; d_z (mean "
        "over standard deviation of the prompts' differences) and rank-biserial correlation say "
        "how consistent it is; shares of the prompts.",
        _size_table(drafters),
        "### The next run\n\nWhere the variance of the difference lies, and how many prompts, or "
        "else how many seeds, would halve the smallest detectable one.",
        _next_run_table(drafters),
    ]
    sections += _grid(result, effects)
    without = table[(table["answers"] == WITHOUT_LOOPS) & (table["kind"] == "drafter")]
    if len(without):
        sections += ["## Without looping answers", _loop_table(drafters, without)]
    sections += [
        f"## Speed and losslessness\n\nSpeedup over: {BASELINE}, timed once for all runs, so "
        "that a machine whose load changed meanwhile shows here. Against control: how many times "
        "as fast, geometric mean over answers and seeds. Prompts: those decoded and timed.",
        _speed_table(drafters),
    ]
    floors = everything[everything["kind"] == "floor"]
    if len(floors):
        sections += [
            "## Floors\n\nDrafters that learn nothing from the target.",
            _tau_table(floors),
        ]
    failed = failed_cells(result.runs)
    if failed:
        sections += ["## Failed cells\n\nNot averaged into anything.", _bullets(failed)]
    sections += ["## Caveats", _bullets(caveats(result, table))]
    return "\n\n".join(section for section in sections if section) + "\n"


def _grid(result: Result, effects: pd.DataFrame) -> list[str]:
    """Main effects and interactions, or why there are none; nothing without a grid."""
    if not grid_cells(result):
        return []
    title = "## Main effects and interactions\n\n"
    if effects.empty:
        return [f"{title}None: a cell of the grid was not measured."]
    rows = [
        [
            row["kind"],
            f"{row['contrast']} (INVALID)" if row["invalid"] else row["contrast"],
            with_interval(row["estimate"], row["low"], row["high"], "+.3f"),
            number(row["p_holm"], ".2g"),
            row["verdict"],
        ]
        for _, row in effects.iterrows()
    ]
    explained = (
        "A main effect is averaged over the levels of the other switches; an interaction is what "
        "two changes do together beyond the sum of each alone. Over all answers, looping ones "
        "included; Holm's adjustment covers each kind."
    )
    header = ["kind", "contrast", "Δτ [95% interval]", "Holm p", "verdict"]
    return [title + explained, markdown_table(header, rows)]


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


def _name(row: pd.Series) -> str:
    """Arm as shown: negative controls carry their stamp in every table."""
    return f"{row['arm']} (INVALID)" if row["invalid"] else str(row["arm"])


def _tau_table(table: pd.DataFrame) -> str:
    """Arms down, benches across. The full interval over all benches, half its width per bench,
    which keeps the table narrow; floors have no seeds."""
    rows = []
    for _, group in table.groupby("arm", sort=False):
        row = group.iloc[0]
        seeds = NOTHING if row["kind"] == "floor" else str(row["seeds"])
        if row["prompts"] and row["kind"] != "floor":
            seeds = _stamped(seeds, row["seeds"] < MIN_SEEDS)
        rows.append([_name(row), seeds, *[_tau(row) for _, row in group.iterrows()]])
    counts = table.groupby("bench", sort=False)["prompts"].max()
    benches = [
        _stamped(f"{bench} (n={count})", 0 < count < MIN_PROMPTS) for bench, count in counts.items()
    ]
    header = ["arm", "seeds", *benches]
    return markdown_table(header, rows) if rows else "No arm was measured."


def _stamped(text: str, few: bool) -> str:
    return f"{text} TOO FEW" if few else text


def _tau(row: pd.Series) -> str:
    if row["bench"] == "all":
        return with_interval(row["tau"], row["tau_low"], row["tau_high"], ".3f")
    half = number((row["tau_high"] - row["tau_low"]) / 2, ".2f")
    return NOTHING if row["prompts"] == 0 else f"{row['tau']:.2f} ±{half}"


def _difference_table(table: pd.DataFrame) -> str:
    rows = [
        [
            _name(row),
            row["bench"],
            _difference(row),
            number(row["p"], ".2g"),
            number(row["p_holm"], ".2g"),
            row["verdict"],
        ]
        for _, row in table[~table["control"]].iterrows()
    ]
    if not rows:
        return "No arm to compare."
    return markdown_table(["arm", "bench", "Δτ [95% interval]", "p", "Holm p", "verdict"], rows)


def _difference(row: pd.Series) -> str:
    return with_interval(row["difference"], row["difference_low"], row["difference_high"], "+.3f")


def _compared(table: pd.DataFrame) -> pd.DataFrame:
    """The rows over all benches that have a difference."""
    return table[(table["bench"] == "all") & table["difference"].notna()]


def _size_table(table: pd.DataFrame) -> str:
    rows = [
        [
            _name(row),
            with_interval(
                row["relative_percent"],
                row["relative_percent_low"],
                row["relative_percent_high"],
                "+.1f",
            ),
            number(row["cohens_dz"], "+.2f"),
            number(row["rank_biserial"], "+.2f"),
            *[number(row[f"{share}_share"], ".0%") for share in ("better", "equal", "worse")],
        ]
        for _, row in _compared(table).iterrows()
    ]
    header = ["arm", "Δτ % [95% interval]", "d_z", "rank-biserial", "better", "equal", "worse"]
    return markdown_table(header, rows) if rows else "No arm to compare."


def _next_run_table(table: pd.DataFrame) -> str:
    rows = []
    for _, row in _compared(table).iterrows():
        parts = [row[f"difference_variance_{part}"] for part in ("prompt", "seed", "residual")]
        total = np.nansum(parts)
        shares = [number(part / total if total else np.nan, ".0%") for part in parts]
        prompts = _sizes(row["paired_prompts"], row["halving_prompts"])
        seeds = _sizes(row["paired_seeds"], row["halving_seeds"])
        rows.append([_name(row), *shares, number(row["detectable"], ".2g"), prompts, seeds])
    header = ["arm", "prompt", "seed", "residual", "detectable", "prompts", "or seeds"]
    return markdown_table(header, rows) if rows else "No arm to compare."


def _sizes(now: int, needed: float) -> str:
    if np.isnan(needed):
        return f"{now} → ?"
    return f"{now} → no number" if np.isinf(needed) else f"{now} → {needed:.0f}"


def _loop_table(table: pd.DataFrame, without: pd.DataFrame) -> str:
    rows = []
    keys = ["arm", "bench"]
    pairs = table.merge(without, on=keys, suffixes=("_with", ""))
    for _, row in pairs[pairs["bench"] == "all"].iterrows():
        rows.append(
            [
                _name(row),
                number(row["tau_with"], ".3f"),
                with_interval(row["tau"], row["tau_low"], row["tau_high"], ".3f"),
                _difference(row),
                row["verdict"],
            ]
        )
    header = ["arm", "τ all answers", f"τ {WITHOUT_LOOPS}", "Δτ [95% interval]", "verdict"]
    return markdown_table(header, rows)


def _speed_table(table: pd.DataFrame) -> str:
    rows = [
        [
            _name(row),
            _stamped(str(row["speed_prompts"]), 0 < row["speed_prompts"] < MIN_PROMPTS),
            with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], ".2f"),
            with_interval(
                row["speed_ratio"], row["speed_ratio_low"], row["speed_ratio_high"], ".2f"
            ),
            f"{row['lossless']}/{row['lossless_checked']}" if row["lossless_checked"] else NOTHING,
            number(row["tau_pooled"], ".3f"),
            number(row["parameters"] / 1e6, ".2f"),
            number(row["train_seconds"], ".0f"),
        ]
        for _, row in table[table["bench"] == "all"].iterrows()
    ]
    header = [
        "arm",
        "prompts",
        "speedup [95% interval]",
        "against control",
        "lossless",
        "τ pooled",
        "parameters (M)",
        "training (s)",
    ]
    return markdown_table(header, rows)
