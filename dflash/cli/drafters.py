"""Verbs about single drafters: ``train``, ``evaluate`` and ``generate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash.cli.verb import Verb, open_lab, say
from dflash.model.errors import UserError


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="EXPERIMENT (its control) or EXPERIMENT/ARM"
    )
    parser.add_argument("--output", type=Path, help="copy the checkpoint to this new folder")


def _train(arguments: argparse.Namespace) -> int:
    from dflash.lab.config import compose_config
    from dflash.lab.experiment import load_arm

    if arguments.name is None:
        config = compose_config(arguments.overrides)
    else:
        experiment, arm = load_arm(arguments.name, arguments.overrides)
        config = arm.config

    from dflash.lab.budget import match_budget
    from dflash.lab.executors.choice import check_match
    from dflash.lab.single import check_executor, train_drafters

    check_executor(config)
    lab = open_lab(arguments)
    if arguments.name is not None:
        check_match(experiment)
        config = match_budget(lab, experiment).arm(arm.name).config
    for path in train_drafters(lab, config, arguments.output):
        say(str(path))
    return 0


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="folder of a drafter")


def _evaluate(arguments: argparse.Namespace) -> int:
    from dflash.lab.config import compose_config

    for override in arguments.overrides:
        if override.lstrip("+~").startswith("drafter"):
            raise UserError(f"{override}: the checkpoint decides what the drafter is")
    config = compose_config(arguments.overrides)

    from dflash.lab.single import check_executor, evaluate_checkpoint

    check_executor(config)
    for line in evaluate_checkpoint(open_lab(arguments), config, arguments.checkpoint):
        say(line)
    return 0


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("--drafter", type=Path, help="checkpoint (default: the latest trained)")
    parser.add_argument("--new-tokens", type=int, default=256, help="longest answer (256)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (0)")


def _generate(arguments: argparse.Namespace) -> int:
    from dflash.lab.config import compose_config

    config = compose_config(arguments.overrides)

    from dflash.lab.generate import stream_answer
    from dflash.lab.single import check_executor

    check_executor(config)
    stream_answer(
        open_lab(arguments),
        config,
        arguments.prompt,
        drafter=arguments.drafter,
        new_tokens=arguments.new_tokens,
        temperature=arguments.temperature,
    )
    return 0


TRAIN = Verb(
    "train",
    "train one drafter and print its path",
    _train,
    _train_arguments,
    (
        "dflash train",
        "dflash train no_qknorm/no_qknorm --tier smoke",
        "dflash train drafter.block_size=8 --seeds 3 --output my_drafter",
    ),
)
EVALUATE = Verb(
    "evaluate",
    "replay and decode with a trained drafter",
    _evaluate,
    _evaluate_arguments,
    ("dflash evaluate path/to/checkpoint data.eval.gsm8k=50",),
)
GENERATE = Verb(
    "generate",
    "stream an answer by speculative decoding",
    _generate,
    _generate_arguments,
    (
        'dflash generate "Write a haiku about rivers."',
        'dflash generate "Why is the sky blue?" --drafter path/to/checkpoint --new-tokens 200',
    ),
)
