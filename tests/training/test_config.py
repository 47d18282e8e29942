from __future__ import annotations

import pytest

from dflash.model import UserError, parse_dataclass
from dflash.training.config import LossConfig, TrainConfig


@pytest.mark.parametrize(
    ("block_size", "gamma"), [(16, 7), (10, 5), (8, 4), (13, 6), (6, 3), (5, 2.5), (2, 1), (31, 12)]
)
def test_gamma_by_block_size(block_size, gamma):
    assert LossConfig().gamma_for(block_size) == gamma
    assert LossConfig(gamma=2.5).gamma_for(block_size) == 2.5


def test_defaults_are_the_papers_recipe():
    config = TrainConfig()
    assert (config.epochs, config.anchors_per_sequence, config.max_length) == (6, 512, 3072)
    assert (config.lr, config.clip, config.warmup_ratio) == (6e-4, 1.0, 0.04)
    assert (config.anchors, config.loss.position, config.init) == ("random", "exp", "random")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "train.steps=0"),
        ({"micro_batch": -1}, "train.micro_batch=-1"),
        ({"sequences": 0}, "train.sequences=0"),
        ({"strategy": 3}, "train.strategy=3"),
        ({"lr": 0.0}, "train.lr=0.0"),
        ({"clip": -1.0}, "train.clip=-1.0"),
        ({"warmup_ratio": 1.5}, "train.warmup_ratio=1.5"),
        ({"devices": 3, "sequences": 2}, "train.devices=3"),
        ({"loss": {"gamma": 0.0}}, "train.loss.gamma=0.0"),
        ({"anchors": "some"}, "train.anchors='some'"),
        ({"stepz": 3}, "did you mean 'steps'"),
        ({"loss": {"gama": 3}}, "did you mean 'gamma'"),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(UserError, match=message.replace("'", ".")):
        parse_dataclass(TrainConfig, wrong, "train")
