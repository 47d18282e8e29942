"""The four long tables of an experiment: their columns, kinds and meaning (design §9).

A kind is one of `str`, `int`, `float` (may be NaN), `bool`, `bool?` (may be missing) and `int?`
(may be missing).
"""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    kind: str
    meaning: str


RUNS = {
    "experiment": Column("str", "name of the experiment"),
    "arm": Column("str", "'control', the name of an arm, or 'floor:<name>'"),
    "seed": Column("int", "training seed; -1 for floors"),
    "run_id": Column("str", "key of the other tables"),
    "control": Column("bool", "is this a run of the control arm"),
    "invalid": Column("bool", "negative control: never a result"),
    "kind": Column("str", "'drafter' or 'floor'"),
    "config_diff": Column("str", "JSON: switches that differ from the control"),
    "levels": Column("str", "JSON: factor of the grid -> value; {} outside a grid"),
    "parameters": Column("float", "trainable parameters of the drafter"),
    "steps": Column("float", "optimizer steps"),
    "tokens": Column("float", "supervised tokens seen in training"),
    "train_seconds": Column("float", "wall seconds of training"),
    "final_loss": Column("float", "last training loss; not comparable between losses"),
    "order_hash": Column("str", "hash of the sequences fed, step by step; empty for floors"),
    "anchor_hash": Column("str", "hash of the anchors fed"),
    "feature_hash": Column("str", "hash of features fed (sampled); empty where none are read"),
    "init_hash": Column("str", "hash of every parameter's starting value"),
    "moved": Column("str", "JSON: component -> largest |w - initial w| of its parameters"),
    "device": Column("str", "device that trained"),
    "dtype": Column("str", "arithmetic of target and drafter in evaluation"),
    "target": Column("str", "label of the target model"),
    "template_hash": Column("str", "hash of the chat template in use"),
    "code_version": Column("str", "version of the code that ran"),
    "packages": Column("str", "JSON: versions of packages"),
    "machine": Column("str", "JSON: processor, cores, threads, memory, GPUs"),
    "commit": Column("str", "commit of the source tree; 'unknown' outside a checkout"),
    "diff_hash": Column("str", "names provenance/<diff_hash>.diff; empty for a clean tree"),
    "entry": Column("str", "the run in the store and in trackers; empty where none trained"),
    "status": Column("str", "'ok' or 'failed'"),
    "error": Column("str", "one line; empty when ok"),
}

PROMPTS = {
    "run_id": Column("str", "row of `runs`"),
    "bench": Column("str", "evaluation prompt set"),
    "prompt_id": Column("str", "prompt; all turns of a conversation share it"),
    "domain": Column("str", "math, code, chat, ..."),
    "turn": Column("int", "0-based turn of the conversation"),
    "temperature": Column("float", "temperature of the target"),
    "width": Column("float", "slots verified per step, anchor included"),
    "steps": Column("int", "verification steps (target calls after the prefill)"),
    "emitted": Column("int", "tokens emitted by those steps, truncated at stop"),
    "tau": Column("float", "emitted / steps; NaN when there is no step"),
    "degenerate": Column("bool", "the target's answer runs into a loop"),
    "source": Column("str", "'replay' or 'decode'"),
    "device": Column("str", "device that decoded; empty in replay"),
    "ar_seconds": Column("float", "seconds of the same loop at block size 1; NaN when not timed"),
    "spec_seconds": Column("float", "seconds of speculative decoding; NaN when not timed"),
    "lossless": Column("bool?", "output equals the target's greedy output; missing if not checked"),
    "first_divergence": Column("int?", "first differing token when not lossless"),
}

STEPS = {
    "run_id": Column("str", "row of `runs`"),
    "bench": Column("str", "evaluation prompt set"),
    "prompt_id": Column("str", "prompt"),
    "turn": Column("int", "0-based turn"),
    "source": Column("str", "'replay' or 'decode'"),
    "step": Column("int", "0-based step of the walk"),
    "anchor": Column("int", "absolute position of the anchor"),
    "accepted": Column(
        "int", "draft tokens the target agreed with; in replay up to the answer's end"
    ),
    "emitted": Column("int", "tokens emitted, after truncation"),
    "t_draft": Column("float", "seconds of drafting; NaN in replay"),
    "t_verify": Column("float", "seconds of verification; NaN in replay"),
    "t_host": Column("float", "seconds of everything else; NaN in replay"),
}

SURVIVAL = {
    "run_id": Column("str", "row of `runs`"),
    "bench": Column("str", "evaluation prompt set"),
    "slot": Column("int", "slot of the block, 1 .. block_size - 1"),
    "reached": Column("int", "anchors whose slots 1..k-1 all matched and whose label k exists"),
    "accepted": Column("int", "of those, anchors whose slot k matched"),
    "censored": Column("int", "anchors whose slots 1..k-1 matched, label k beyond the answer"),
    "labelled": Column("int", "anchors whose label k exists, whatever came before"),
    "correct": Column("int", "of those, anchors whose slot k matched"),
}

TABLES = {"runs": RUNS, "prompts": PROMPTS, "steps": STEPS, "survival": SURVIVAL}

KEYS = {
    "runs": ["run_id"],
    "prompts": ["run_id", "bench", "prompt_id", "turn", "temperature", "width", "source"],
    "steps": ["run_id", "bench", "prompt_id", "turn", "source", "step"],
    "survival": ["run_id", "bench", "slot"],
}
