"""Which answers are really decoded."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from dflash.lab.config import compose_config
from dflash.lab.experiment import load_experiment
from dflash.lab.provenance import device_id
from dflash.lab.run import run_experiment
from dflash.lab.stages import decode
from dflash.lab.stages.decode import _chosen, _prompt_row

ANSWERS = [  # (prompt, bench), by prompt and turn as the rollouts stage leaves them
    *[(f"mt_bench/{prompt}", "mt_bench") for prompt in (7, 7, 3, 3, 5, 5)],
    *[(f"vicuna/{prompt}", "vicuna") for prompt in (2, 9)],
]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, [0, 1, 6]), (2, [0, 1, 2, 3, 6, 7]), (9, range(8))]
)
def test_a_conversation_counts_as_one_prompt_and_is_decoded_whole(count, expected):
    evaluation = SimpleNamespace(
        rollouts=lambda: [SimpleNamespace(prompt_id=prompt) for prompt, _ in ANSWERS],
        benches=lambda: [bench for _, bench in ANSWERS],
    )
    config = compose_config([f"decode.prompts_per_bench={count}"])
    assert list(_chosen(config, evaluation)) == list(expected)


@pytest.mark.parametrize(("baseline", "timed"), [("cpu x86_64 x2", True), ("other", False)])
def test_seconds_of_two_devices_make_no_speedup(baseline, timed):
    rollout = SimpleNamespace(
        prompt_id="vicuna/1", turn=0, domain="chat", finish="stop", answer_ids=[1, 2, 3]
    )
    ours = {"output": [1, 2], "steps": [[9, 1, 2, 0.1, 0.1, 0.1]], "width": 4, "seconds": 0.3}
    plain = {"output": [1, 2], "seconds": 0.6, "device": baseline}
    config = compose_config(["decode.temperature=0"])
    row = _prompt_row(config, rollout, "vicuna", ours | {"device": "cpu x86_64 x2"}, plain)
    assert row["device"] == "cpu x86_64 x2"
    assert (row["ar_seconds"] == 0.6) if timed else math.isnan(row["ar_seconds"])
    assert row["lossless"]


def test_one_process_at_a_time_decodes_on_a_device(
    lab, small, small_overrides, tmp_path, monkeypatch
):
    name = f"decoding-{device_id(torch.device('cpu'))}"
    free: list[bool] = []
    honest = decode._generate

    def watched(*given):
        free.append(lab.store.claim(name) is not None)
        return honest(*given)

    monkeypatch.setattr(decode, "_generate", watched)
    experiment = load_experiment(small, [*small_overrides, "seeds=[0]"])
    assert run_experiment(lab, experiment, tmp_path / "results").failed == []
    assert len(free) == 2 * (1 + 3), "target and three arms, each warmed up"
    assert not any(free)
    assert lab.store.claim(name) is not None
