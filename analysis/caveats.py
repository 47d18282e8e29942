"""What a reader must know before believing a summary."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import components, statistics
from analysis.floor import Floor, devices
from analysis.load import Result
from analysis.statistics import CLUSTER
from analysis.table import ALL_ANSWERS, WITHOUT_LOOPS, arm_order, headline_source, measured
from analysis.verdict import MIN_PROMPTS, MIN_SEEDS


def caveats(result: Result, table: pd.DataFrame) -> list[str]:
    """Sentences for the end of summary.md; `table` is the `summary_table` of `result`."""
    rows = measured(result, headline_source(result))
    return [
        *_where(result, rows),
        *([] if result.matched else _matched(result.runs)),
        *_start(result),
        *_budget(result),
        *_seeds_and_prompts(result, table, rows),
        *_noise(result, table),
        *_loops(table, rows),
        *_losslessness(table),
        *_too_good(result, rows),
        *_left_out(result, table, rows),
        *_frozen(result),
    ]


def failed_cells(runs: pd.DataFrame) -> list[str]:
    """One line per failed run: arm, seed and the first line of its error."""
    lines = []
    for run in runs[runs["status"] == "failed"].to_dict("records"):
        error = str(run["error"]).strip() or "no error text"
        lines.append(f"{run['arm']}, seed {run['seed']}: {error.splitlines()[0]}")
    return lines


def _where(result: Result, rows: pd.DataFrame) -> list[str]:
    fine = result.runs[result.runs["status"] == "ok"]
    if fine.empty:
        return ["No run succeeded: there is nothing to compare."]

    def values(column: str) -> str:
        return ", ".join(sorted(fine[column].unique()))

    source = "replay" if headline_source(result) == "replay" else "real decoding"
    temperature = f" at temperature {rows['temperature'].min():g}" if len(rows) else ""
    lines = [
        f"Trained on device {values('device')}, in dtype {values('dtype')}, target "
        f"{values('target')}; τ from {source}{temperature}."
    ]
    decoded = measured(result, "decode")
    if len(decoded) and set(decoded["device"]) != set(fine["device"]):
        lines.append(f"Decoded on device {devices(decoded).replace('; ', ', ')}.")
    if decoded["device"].nunique() > 1:
        lines.append("Speeds are compared only where both answers were decoded on equal devices.")
    trained = fine[
        fine["kind"] == "drafter"
    ]  # floors run other code, and nothing is matched to them
    for column in ("device", "dtype", "target", "template_hash", "code_version"):
        if trained[column].nunique() > 1:
            found = ", ".join(sorted(trained[column].unique()))
            lines.append(f"Runs differ in {column} ({found}): they are not matched.")
    return lines


FED = {"order_hash": "order of data", "anchor_hash": "anchors", "feature_hash": "features"}


def _matched(runs: pd.DataFrame) -> list[str]:
    """What the recorded hashes of an arm and its control do not share, from `runs` alone.

    For a folder without matched.json, whose sentence knows more: which parameters are shared, what
    an arm declares, how far runs of other lengths agree.
    Starting values are compared where the numbers of parameters are equal: other parameters give
    another hash anyway.
    """
    fine = runs[(runs["kind"] == "drafter") & (runs["status"] == "ok")]
    columns = [*FED, "init_hash", "parameters"]
    pairs = fine[~fine["control"]].merge(
        fine.loc[fine["control"], ["seed", *columns]], on="seed", suffixes=("", "_control")
    )
    other = {what: pairs[column] != pairs[f"{column}_control"] for column, what in FED.items()}
    other["starting values"] = (pairs["init_hash"] != pairs["init_hash_control"]) & (
        pairs["parameters"] == pairs["parameters_control"]
    )
    frame = pd.DataFrame(other).groupby(pairs["arm"], sort=False).any()
    return [
        f"{arm} and the control differ in {', '.join(frame.columns[differs])}: "
        "their difference in τ covers that too."
        for arm, differs in frame.iterrows()
        if differs.any()
    ]


# The near-sighted start is fitted to the control's features, rotary positions and mask vector.
FITTED = ("drafter.kv.", "drafter.rope.", "drafter.mask_embedding", "drafter.attention.context")


def _start(result: Result) -> list[str]:
    control = result.config.get("control", {})
    if control.get("train", {}).get("init") != "target":
        return []
    return [
        f"{arm} starts from weights that were fitted to the control's own design "
        "(train.init=target), which favours the control; train.init=random does not."
        for arm, diff in result.config["arms"].items()
        if any(name.startswith(FITTED) for name in diff)
    ]


def _budget(result: Result) -> list[str]:
    """Which budget the arms share by design, and by which setting."""
    settings = [
        f"{arm} by {key}={value}"
        for arm, setting in result.config.get("matched", {}).items()
        for key, value in setting.items()
    ]
    return (
        [f"Arms have the control's {result.config['match']}: {', '.join(settings)}."]
        if settings
        else []
    )


def _seeds_and_prompts(result: Result, table: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    fine = result.runs[(result.runs["kind"] == "drafter") & (result.runs["status"] == "ok")]
    seeds = fine["seed"].nunique()
    lines = []
    if seeds == 1:
        lines.append(
            "Single seed: intervals cover prompts only; another seed may order the arms otherwise."
        )
    elif 1 < seeds < MIN_SEEDS:
        lines.append(f"{seeds} seeds: a winner needs at least {MIN_SEEDS}.")
    elif seeds:
        lines.append(f"{seeds} seeds bound the variation between seeds only roughly.")
    prompts = rows.drop_duplicates(CLUSTER).groupby("bench").size()
    few = prompts[prompts < MIN_PROMPTS]
    if len(few):
        names = ", ".join(f"{bench} ({count})" for bench, count in few.items())
        lines.append(f"Few prompts, no verdict on their own: {names}.")
    split = statistics.variance_split(rows[rows["control"]])
    total = split.prompt + split.seed + split.residual
    if total > 0:
        shares = [f"{part / total:.0%}" for part in (split.prompt, split.seed, split.residual)]
        lines.append(
            f"Variance of the control's τ: {shares[0]} prompts, {shares[1]} seeds, "
            f"{shares[2]} residual."
        )
    return lines


def _noise(result: Result, table: pd.DataFrame) -> list[str]:
    """The noise floor of this setting, and which differences of speed lie below it."""
    floor = result.floor
    if floor is None:
        return ["The noise floor of this setting is not known; `dflash noise` measures it."]
    seeds = int(table.loc[table["control"], "seeds"].max())
    if seeds == 0:
        return []
    bound = floor.bound("all", seeds)
    says = (
        "too few for a verdict to be held against"
        if np.isnan(bound)
        else f"over {seeds} seed(s) a change without effect moves τ by up to {bound:.2g} in 95 of "
        "100 runs"
    )
    lines = [
        f"Noise floor ({floor.seeds} seeds, {floor.prompts} prompts): {says}; the same cell "
        f"trained again differs by up to {floor.rerun['all'].largest:.2g}."
    ]
    code = set(result.runs.loc[result.runs["control"], "code_version"])
    if code != {floor.code_version}:
        lines.append("The noise floor was measured with other code than this experiment.")
    return lines + _clock(floor, devices(measured(result, "decode")), table, seeds)


def _clock(floor: Floor, device: str, table: pd.DataFrame, seeds: int) -> list[str]:
    """The noise floor of speed, and the arms whose difference to the control lies below it.

    device: that decoded the answers of `table`; empty where none were decoded.
    """
    if floor.clock is None or not floor.clock.enough:
        return []
    if device and device != floor.clock_device:
        return [f"The noise floor of speed was measured on {floor.clock_device}, not on {device}."]
    bound = floor.clock.bound(seeds)
    rows = table[(table["bench"] == "all") & (table["answers"] == ALL_ANSWERS)]
    within = rows.loc[np.log(rows["speed_ratio"]).abs() < bound, "arm"]
    below = f"; below it: {', '.join(within)}" if len(within) else ""
    return [
        "Noise floor of speed: the same drafter trained and timed again differs by up to "
        f"{np.expm1(bound):.1%} in 95 of 100 runs{below}."
    ]


def _loops(table: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    answers = rows.drop_duplicates([*CLUSTER, "turn"])
    looping = int(answers["degenerate"].sum())
    if not looping:
        return [f"None of the {len(answers)} answers runs into a loop."] if len(answers) else []
    lines = [
        f"{looping} of {len(answers)} answers run into a loop, which is easily predicted and "
        "inflates τ; the results without them are above."
    ]
    verdicts = table[table["bench"] == "all"].pivot(
        index="arm", columns="answers", values="verdict"
    )
    heads = verdicts.apply(lambda column: column.str.split(" (", regex=False).str[0])
    for arm in heads.index[heads[ALL_ANSWERS] != heads[WITHOUT_LOOPS]]:
        lines.append(f"The verdict on {arm} changes when looping answers are left out.")
    return lines


def _losslessness(table: pd.DataFrame) -> list[str]:
    rows = table[(table["bench"] == "all") & (table["answers"] == ALL_ANSWERS)]
    rows = rows[rows["kind"] == "drafter"]
    checked = rows[rows["lossless_checked"] > 0]
    if checked.empty:
        return ["Losslessness was not checked: no answer was decoded."]
    return [
        f"{row['arm']} is not lossless: {row['lossless_checked'] - row['lossless']} of "
        f"{row['lossless_checked']} outputs differ from the target's own."
        for row in checked[checked["lossless"] < checked["lossless_checked"]].to_dict("records")
    ]


PERFECT = 0.999  # acceptance that no drafter reaches honestly


def _too_good(result: Result, rows: pd.DataFrame) -> list[str]:
    """Arms whose every step is full, an answer's last one aside, which its end may cut."""
    answer = ["run_id", "bench", "prompt_id", "turn", "source"]
    steps = result.steps.merge(rows[[*answer, "arm", "width"]], on=answer)
    whole = steps[steps["step"] < steps.groupby(answer)["step"].transform("max")]
    sums = whole.groupby("arm")[["emitted", "width"]].sum()
    return [
        f"{arm} is accepted almost whole ({row['emitted']:g} of {row['width']:g} possible tokens): "
        "suspect a leak before believing it."
        for arm, row in sums.iterrows()
        if row["emitted"] >= PERFECT * row["width"]
    ]


def _left_out(result: Result, table: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    lines = []
    if rows["tau"].isna().any():
        lines.append(f"{int(rows['tau'].isna().sum())} answers without a step have no τ.")
    unpaired = table[
        (table["bench"] == "all")
        & (table["answers"] == ALL_ANSWERS)
        & (table["paired_prompts"] > 0)
        & (
            (table["paired_prompts"] < table["prompts"].max())
            | (table["paired_seeds"] < table["seeds"].max())
        )
    ]
    lines += [
        f"{row['arm']} pairs with the control on {row['paired_prompts']} prompts and "
        f"{row['paired_seeds']} seed(s) only."
        for row in unpaired.to_dict("records")
    ]
    other = sorted(set(result.prompts["temperature"]) - set(rows["temperature"]))
    if other:
        names = ", ".join(f"{temperature:g}" for temperature in other)
        lines.append(f"Also measured, in prompts.parquet only: temperature {names}.")
    invalid = table.loc[table["invalid"], "arm"].unique()
    if len(invalid):
        lines.append(f"Negative control, never a result: {', '.join(invalid)}.")
    return lines


def _frozen(result: Result) -> list[str]:
    """What never moved, with how far everything else did, for each arm that is refused for it."""
    control = result.runs[result.runs["control"]]
    lines = []
    for arm in arm_order(result.runs):
        own = result.runs[result.runs["arm"] == arm]
        reason = components.frozen(own, control, components.switches(own))
        if reason:
            every = components.moves(own) | components.moves(control)
            far = ", ".join(f"{name} {move:.1g}" for name, move in sorted(every.items()))
            lines.append(
                f"{arm} is refused a verdict: {reason}. Largest change of each component in "
                f"training, over the run that changed it least: {far}."
            )
    return lines
