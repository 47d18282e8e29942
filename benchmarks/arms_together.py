"""Do arms that train together cost one target pass, and do they leave the same drafters?

Trains the control and two arms (other taps, no q/k norm) with data.mode=online, first each by
itself, then together, and compares weights byte by byte. Exit code 1 when anything differs.

    python benchmarks/arms_together.py --steps 20
    python benchmarks/arms_together.py --steps 20 target=qwen3_0_6b
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from dflash.data.features import OnlineFeatures
from dflash.lab.experiment import load_experiment
from dflash.lab.grid import PlannedArm, plan_arms
from dflash.lab.pipeline import prepare_training, train_cell
from dflash.lab.stages.common import Lab
from dflash.lab.store import Store
from dflash.lab.together import train_together

EXPERIMENT = {
    "question": "What does the target's pass cost?",
    "hypothesis": "As much as the arms are many, when each trains by itself.",
    "paper": "not ablated",
    "arms": {
        "last": {"drafter.features.taps": "last"},
        "no_qknorm": {"drafter.attention.qk_norm": "none"},
    },
}
SMALL = [
    "data.mode=online",
    "data.train={gsm_symbolic: 0, docstrings: 0, written: 40}",
    "data.eval={gsm8k: 0, humaneval: 0, mt_bench: 0, vicuna: 4}",
]
WEIGHTS = "drafter/model.safetensors"


def timed(work: Callable[[], None]) -> tuple[float, int]:
    """Seconds, and forwards of the target over one sequence."""
    forwards = 0
    row = OnlineFeatures.row

    def counting(source: OnlineFeatures, index: int) -> object:
        nonlocal forwards
        forwards += 1
        return row(source, index)

    OnlineFeatures.row = counting  # type: ignore[method-assign, assignment]
    start = time.perf_counter()
    try:
        work()
    finally:
        OnlineFeatures.row = row  # type: ignore[method-assign]
    return time.perf_counter() - start, forwards


def drafters(lab: Lab) -> dict[str, bytes]:
    """Entry -> bytes of its weights."""
    return {path.name: (path / WEIGHTS).read_bytes() for path in lab.store.entries("train")}


def plan(lab: Lab, steps: int, overrides: list[str]) -> list[PlannedArm]:
    """The three arms, with answers and target ready."""
    path = lab.store.root / "arms_together.yaml"
    path.write_text(yaml.safe_dump(EXPERIMENT))
    given = [*SMALL, f"train.steps={steps}", "seeds=[0]", *overrides]
    planned = plan_arms(lab, load_experiment(str(path), given))
    for item in planned:
        prepare_training(lab, item.arm.config, item.info, 0)
    lab.target(planned[0].arm.config.target)
    return planned


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        lab = Lab(Store(Path(place)), print, progress=False)
        planned = plan(lab, options.steps, options.overrides)

        def apart() -> None:
            for item in planned:
                train_cell(lab, item.arm.config, item.info, 0)

        seconds, forwards = timed(apart)
        first = drafters(lab)
        for entry in lab.store.entries("train"):
            entry.rename(lab.store.root / f"apart.{entry.name}")
        both = timed(lambda: train_together(replace(lab), planned, 0))
        equal = drafters(lab) == first and len(first) == len(planned)
    print(f"apart     {seconds:8.1f} s  {forwards:6} target forwards")
    print(f"together  {both[0]:8.1f} s  {both[1]:6} target forwards")
    print(f"{seconds / both[0]:.2f} times faster, weights {'equal' if equal else 'DIFFER'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
