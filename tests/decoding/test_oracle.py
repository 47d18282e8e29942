"""The decode loop on the oracle target, whose answers are known in closed form."""

from __future__ import annotations

import torch

from dflash.decoding import dflash_generate
from dflash.decoding.replay import replay
from dflash.target.oracle import OracleTarget
from tests.decoding.toys import Answer, Rows, toy_drafter


def test_known_answers_come_out_and_replay_agrees():
    target = OracleTarget()
    design = target.design
    drafter = toy_drafter(
        target.model, mask_token_id=design.mask_token_id, features={"taps": [design.tap]}
    )
    answers, features, lengths = [], [], []
    for key in range(design.keys):
        prompt = torch.tensor([design.prompt(key, first=key)])
        result = dflash_generate(
            drafter, target, prompt, 20, target.stop_token_ids, return_stats=True
        )
        assert result.output_ids[0, 2:].tolist() == design.answer(key, key, 20)
        answers.append(Answer(prompt[0].numpy(), result.output_ids[0, 2:].numpy()))
        features.append(target.features(result.output_ids, drafter.target_layer_ids)[0])
        lengths.append(result.acceptance_lengths)
    rows = replay(drafter, target, answers, Rows(features))
    assert [row.acceptance_lengths() for row in rows] == lengths
