"""Stages "autoregressive" and "decode": real decoding of some prompts, timed and compared.

The target decodes every prompt once by the same loop at block size 1; the drafters' outputs and
seconds are held against that. Finished prompts survive a kill. Of all processes that share a store
one at a time decodes on a device, so that no cell's seconds contain another's work of that kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dflash.data.rollouts import Rollout
from dflash.decoding.speculative import Generation, dflash_generate
from dflash.lab.config import LabConfig
from dflash.lab.provenance import device_id, device_name
from dflash.lab.results import Row, write_table
from dflash.lab.stages.answers import Answers
from dflash.lab.stages.common import Code, Lab, read_json, write_json
from dflash.lab.stages.tables import NAN, identity, is_degenerate
from dflash.lab.stages.train import Trained
from dflash.lab.store import Key
from dflash.metrics.acceptance import ratio
from dflash.model.drafter import DFlashDraftModel
from dflash.target import Target

CODE = Code(
    roots=("dflash.lab.stages.decode", "dflash.lab.stages.tables", "dflash.decoding.speculative"),
    packages=(
        "dflash.decoding",
        "dflash.metrics",
        "dflash.model",
        "dflash.target",
        "dflash.lab.stages.tables",
    ),
)
WARM_UP = 8  # tokens


def decode_key(
    config: LabConfig, drafter: str | None, evaluation: str, device: str, baseline: str | None
) -> Key:
    """Key of a decode stage; without a drafter, of the plain decoding it is compared with."""
    parts = {
        "temperature": config.decode.temperature,
        "prompts_per_bench": config.decode.prompts_per_bench,
        "new_tokens": config.decode.new_tokens,
        "device": device,  # seconds are of one machine only
    }
    if drafter is None:
        return CODE.key("autoregressive", parts, {"evaluation": evaluation})
    parts |= {"width": config.decode.width, "verify": config.decode.verify}
    inputs = {"evaluation": evaluation, "drafter": drafter, "autoregressive": baseline or ""}
    return CODE.key("decode", parts, inputs)


def build_autoregressive(lab: Lab, config: LabConfig, evaluation: Answers, device: str) -> Path:
    """Output and seconds of plain decoding, one file a prompt."""
    key = decode_key(config, None, evaluation.entry.name, device, None)

    def work(directory: Path) -> None:
        target = lab.target(config.target)
        _each_prompt(lab, directory, config, evaluation, target, None)

    return lab.store.build(key, work)


def build_decode(
    lab: Lab, config: LabConfig, trained: Trained, evaluation: Answers, device: str
) -> Path:
    """Tables ``prompts`` and ``steps`` of one drafter's real decoding.

    Raises:
        StoreError: damaged entry or no space left.
    """
    baseline = build_autoregressive(lab, config, evaluation, device)
    key = decode_key(config, trained.name, evaluation.entry.name, device, baseline.name)

    def work(directory: Path) -> None:
        target = lab.target(config.target)
        drafter = trained.load(target)
        _each_prompt(lab, directory, config, evaluation, target, drafter)
        prompts: list[Row] = []
        steps: list[Row] = []
        for index, (rollout, bench) in _chosen(config, evaluation).items():
            ours = read_json(directory / _file(index))
            plain = read_json(baseline / _file(index))
            prompts.append(_prompt_row(config, rollout, bench, ours, plain))
            steps += _step_rows(rollout, bench, ours)
        write_table(directory / "prompts.parquet", "prompts", prompts)
        write_table(directory / "steps.parquet", "steps", steps)

    return lab.store.build(key, work)


def _chosen(config: LabConfig, evaluation: Answers) -> dict[int, tuple[Rollout, str]]:
    """All turns of the first prompts of every benchmark, by their index among the answers."""
    taken: dict[str, list[str]] = {}  # bench -> prompts
    chosen: dict[int, tuple[Rollout, str]] = {}
    pairs = zip(evaluation.rollouts(), evaluation.benches(), strict=True)
    for index, (rollout, bench) in enumerate(pairs):
        prompts = taken.setdefault(bench, [])
        if rollout.prompt_id not in prompts and len(prompts) < config.decode.prompts_per_bench:
            prompts.append(rollout.prompt_id)
        if rollout.prompt_id in prompts:
            chosen[index] = (rollout, bench)
    return chosen


def _file(index: int) -> str:
    return f"generations/{index:05d}.json"


def _each_prompt(
    lab: Lab,
    directory: Path,
    config: LabConfig,
    evaluation: Answers,
    target: Target,
    drafter: DFlashDraftModel | None,
) -> None:
    """Decode every chosen prompt that has no file yet."""
    chosen = _chosen(config, evaluation)
    todo = [index for index in chosen if not (directory / _file(index)).is_file()]
    if not todo:
        return
    with lab.store.alone(f"decoding-{device_id(target.device)}"):
        # the first tokens of a process are slow, and no prompt should pay for them
        _generate(config, chosen[todo[0]][0], target, drafter, WARM_UP)
        device = device_name(str(target.device))
        for index in lab.bar(todo, "decode" if drafter is not None else "decode plainly"):
            rollout, _ = chosen[index]
            generation = _generate(config, rollout, target, drafter, config.decode.new_tokens)
            write_json(directory / _file(index), _as_json(generation, device))


def _generate(
    config: LabConfig,
    rollout: Rollout,
    target: Target,
    drafter: DFlashDraftModel | None,
    new_tokens: int,
) -> Generation:
    generator = torch.Generator(device=target.device).manual_seed(0)
    result = dflash_generate(
        drafter,
        target,
        torch.as_tensor(rollout.prompt_ids, dtype=torch.long)[None],
        new_tokens,
        stop_token_ids=target.stop_token_ids,
        temperature=config.decode.temperature,
        block_size=config.decode.width if drafter is not None else 1,
        return_stats=True,
        generator=generator,
        verify=config.decode.verify,
    )
    assert isinstance(result, Generation)
    return result


def _as_json(generation: Generation, device: str) -> dict[str, Any]:
    output = generation.output_ids[0, generation.num_input_tokens :].tolist()
    steps = [
        [s.anchor, s.accepted, s.emitted, s.t_draft, s.t_verify, s.t_host] for s in generation.steps
    ]
    return {
        "output": output,
        "steps": steps,
        "width": generation.width,
        "seconds": generation.decode_seconds,
        "device": device,
    }


def _prompt_row(
    config: LabConfig, rollout: Rollout, bench: str, ours: dict[str, Any], plain: dict[str, Any]
) -> Row:
    emitted = sum(step[2] for step in ours["steps"])
    # Two samplings differ although both are the target's: only greedy outputs can be compared.
    greedy = config.decode.temperature == 0
    divergence = first_divergence(ours["output"], plain["output"]) if greedy else None
    comparable = greedy and ours["device"] == plain["device"]
    return identity(rollout, bench, "decode") | {
        "domain": rollout.domain,
        "temperature": config.decode.temperature,
        "width": ours["width"],
        "steps": len(ours["steps"]),
        "emitted": emitted,
        "tau": ratio(emitted, len(ours["steps"])),
        "degenerate": is_degenerate(rollout),
        "device": ours["device"],
        "ar_seconds": plain["seconds"] if comparable else NAN,
        "spec_seconds": ours["seconds"],
        "lossless": divergence is None if greedy else None,
        "first_divergence": divergence,
    }


def first_divergence(ours: list[int], plain: list[int]) -> int | None:
    """Index of the first token that differs, or None; a missing token differs."""
    for index, (left, right) in enumerate(zip(ours, plain, strict=False)):
        if left != right:
            return index
    return None if len(ours) == len(plain) else min(len(ours), len(plain))


STEP_COLUMNS = ("anchor", "accepted", "emitted", "t_draft", "t_verify", "t_host")


def _step_rows(rollout: Rollout, bench: str, ours: dict[str, Any]) -> list[Row]:
    return [
        identity(rollout, bench, "decode")
        | {"step": index}
        | dict(zip(STEP_COLUMNS, step, strict=True))
        for index, step in enumerate(ours["steps"])
    ]
