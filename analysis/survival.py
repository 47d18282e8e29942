"""Survival, conditional and marginal acceptance by slot, from additive counters (`survival`)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.load import Result
from analysis.table import arm_order

_Z = 1.959963984540054  # two-sided 95% of a standard normal


def slot_curves(result: Result, bench: str = "all") -> pd.DataFrame:
    """One row per arm and slot: `reached` and `accepted` (sums over seeds and benches),
    `conditional` = accepted / reached, `survival` = product of the conditionals up to the slot,
    `marginal` = correct / labelled whatever came before, and a band for each.

    The product is Kaplan and Meier's estimate: anchors whose next label lies beyond the answer
    leave the risk set instead of counting as failures. Bands (`*_low`, `*_high`): the range over
    seeds where there are several; with one seed a binomial 95% band (Wilson, Greenwood) that takes
    anchors as independent, which they are not, so it is too narrow. `seeds` tells which it is.
    A slot that no anchor reached has NaN.
    """
    runs = result.runs.loc[result.runs["status"] == "ok", ["run_id", "arm", "seed", "invalid"]]
    rows = result.survival.merge(runs, on="run_id", validate="many_to_one")
    if bench != "all":
        rows = rows[rows["bench"] == bench]
    frames = []
    for arm in arm_order(result.runs):
        own = rows[rows["arm"] == arm]
        if len(own):
            frames.append(_curve(own).assign(arm=arm, invalid=bool(own["invalid"].any())))
    columns = ["arm", "invalid", "seeds", "slot", "reached", "accepted"]
    columns += ["conditional", "conditional_low", "conditional_high"]
    columns += ["survival", "survival_low", "survival_high"]
    columns += ["marginal", "marginal_low", "marginal_high"]
    return pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns)


def _curve(rows: pd.DataFrame) -> pd.DataFrame:
    """The curve of one arm; rows: slot, seed and the counters."""
    sums = rows.groupby(["slot", "seed"])[["reached", "accepted", "labelled", "correct"]].sum()
    by_seed = {
        name: sums[name].unstack("seed").fillna(0).to_numpy(dtype=float)  # [K, S]
        for name in sums.columns
    }
    total = {name: counts.sum(axis=1) for name, counts in by_seed.items()}  # [K]
    several = by_seed["reached"].shape[1] > 1
    conditional = _ratio(total["accepted"], total["reached"])
    each = _ratio(by_seed["accepted"], by_seed["reached"])  # [K, S]
    alone = _ratio(by_seed["correct"], by_seed["labelled"])  # [K, S]
    bands = {
        "conditional": _range(each) if several else wilson(total["accepted"], total["reached"]),
        "survival": _range(np.cumprod(each, axis=0))
        if several
        else greenwood(total["accepted"], total["reached"]),
        "marginal": _range(alone) if several else wilson(total["correct"], total["labelled"]),
    }
    values = {
        "conditional": conditional,
        "survival": np.cumprod(conditional),
        "marginal": _ratio(total["correct"], total["labelled"]),
    }
    return pd.DataFrame(
        {
            "slot": sums.index.unique("slot"),
            "seeds": by_seed["reached"].shape[1],
            "reached": total["reached"].astype(int),
            "accepted": total["accepted"].astype(int),
            **values,
            **{f"{name}_low": band[0] for name, band in bands.items()},
            **{f"{name}_high": band[1] for name, band in bands.items()},
        }
    )


def _range(each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest of the seeds, per slot; `each` is [K, S]."""
    return each.min(axis=1), each.max(axis=1)


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)


def wilson(kept: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% Wilson band of a proportion per slot [K]; NaN where nothing was reached."""
    share = _ratio(kept, total)
    inverse = _ratio(np.ones_like(total), total)
    centre = (share + _Z**2 * inverse / 2) / (1 + _Z**2 * inverse)
    spread = np.sqrt(share * (1 - share) * inverse + (_Z * inverse) ** 2 / 4)
    half = _Z * spread / (1 + _Z**2 * inverse)
    return centre - half, centre + half


def greenwood(kept: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% Greenwood band of the survival per slot [K], on the log scale, within [0, 1].

    Where survival is 0 the variance is not defined and the band is NaN.
    """
    survival = np.cumprod(_ratio(kept, total))
    terms = _ratio(total - kept, total * kept)
    half = _Z * np.sqrt(np.cumsum(terms))
    return survival * np.exp(-half), np.minimum(1.0, survival * np.exp(half))
