"""Is every shipped arm lossless on real prompts, and does replay give its acceptance lengths?

Decodes real prompts in fp32 with the drafter of every distinct arm of every experiment, as training
would start it (acceptance differs, losslessness must not). Exit code 1 when anything differs.

    python benchmarks/every_arm.py --prompts 20 --new-tokens 24
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from replay_vs_decode import SMOLLM2, answer, differing, features_of, real_prompts

from dflash.data.rollouts import Rollout
from dflash.decoding.replay import replay
from dflash.lab.config import LabConfig
from dflash.lab.experiment import load_experiment
from dflash.lab.experiment_file import list_experiments
from dflash.metrics import AcceptanceCounter
from dflash.model import DrafterSwitches
from dflash.target import load_target
from dflash.training.run import build_drafter


def arms() -> Iterator[tuple[str, LabConfig]]:
    """Every drafter that the experiments train, once."""
    seen: list[DrafterSwitches] = []
    for name in list_experiments():
        for arm in load_experiment(name, ["target=smollm2_135m"]).arms:
            if arm.config.drafter not in seen:
                seen.append(arm.config.drafter)
                yield f"{name}/{arm.name}", arm.config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--cache", type=Path, default=Path("store/targets"))
    options = parser.parse_args()
    target = load_target(SMOLLM2, options.cache)
    plain, _, _ = answer(None, target, real_prompts(target, options.prompts), options.new_tokens)
    rollouts = [
        Rollout(item.prompt_id, item.domain, 0, item.prompt_ids, item.answer_ids, "length")
        for item in plain
    ]
    wrong = 0
    for name, config in arms():
        draft = build_drafter(config.drafter, target, rollouts, config.train, seed=0).eval()
        answers, results, _ = answer(draft, target, plain, options.new_tokens)
        rows = replay(draft, target, plain, features_of(target, plain, draft.target_layer_ids))
        outputs, lengths = differing(plain, answers, results, rows)
        tau = sum((row.acceptance() for row in rows), AcceptanceCounter()).tau
        verdict = f"differ: {outputs + lengths}" if outputs or lengths else "equal"
        print(f"{name:<40} tau {tau:.3f}  {len(plain)} prompts {verdict}", flush=True)
        wrong += bool(outputs or lengths)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
