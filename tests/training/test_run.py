from __future__ import annotations

import csv
import dataclasses
import math
import signal

import numpy as np
import pytest
import torch

from dflash.data.features import OnlineFeatures
from dflash.decoding import dflash_generate
from dflash.decoding.replay import replay
from dflash.model import DFlashDraftModel, UserError
from dflash.training import run as module
from dflash.training.config import TrainConfig
from dflash.training.module import DrafterTraining
from dflash.training.precision import precision_of
from dflash.training.run import (
    build_drafter,
    devices_of,
    frequent_tokens,
    total_steps,
    trainable_rows,
)
from tests.data.toys import made_up
from tests.training.toys import (
    SHAPES,
    TAPS,
    answers,
    assert_same,
    features,
    recipe,
    switches,
    toy,
    train,
    weights,
)


@pytest.fixture(scope="module")
def target():
    return toy()


@pytest.fixture(scope="module")
def rollouts(target):
    return answers(target, SHAPES)


def initial(target, rollouts, config=None, **given) -> dict[str, torch.Tensor]:
    drafter = build_drafter(switches(**given), target, rollouts, config or recipe(), 0)
    return drafter.state_dict()


def keep_drafter(patch) -> list[DFlashDraftModel]:
    """Drafters as they are in memory while they are trained."""
    kept: list[DFlashDraftModel] = []
    build = module.build_drafter

    def keeping(*args):
        kept.append(build(*args))
        return kept[-1]

    patch.setattr(module, "build_drafter", keeping)
    return kept


@pytest.mark.parametrize(("tied", "vocab"), [(True, "full"), (False, "top:20")])
def test_one_sample_is_learned_to_the_last_token(tied, vocab, tmp_path):
    """T-OVER1: trained, saved, loaded and really decoded, every block is accepted whole."""
    target = toy(tied=tied)
    rollouts = answers(target, [(5, 1 + 6 * 4)])
    config = recipe(steps=200, sequences=1, anchors="all", lr=2e-2)
    result = train(tmp_path, target, rollouts, config, vocab=vocab)
    drafter = DFlashDraftModel.from_pretrained(result.path).eval()
    prompt = torch.as_tensor(rollouts[0].prompt_ids).long()[None]
    decoded = dflash_generate(drafter, target, prompt, 1 + 6 * 4, return_stats=True)
    assert decoded.output_ids[0].tolist() == rollouts[0].token_ids.tolist()
    assert decoded.acceptance_lengths == [4] * 6
    (replayed,) = replay(drafter, target, rollouts, features(target, rollouts))
    assert (replayed.match[:21] == 3).all()
    assert result.final_loss < 0.3
    assert result.tokens == 200 * (22 * 3 + 2 + 1)


def test_the_result_tells_what_was_done(target, rollouts, tmp_path):
    result = train(tmp_path, target, rollouts, recipe(steps=4, anchors="all"))
    drafter = DFlashDraftModel.from_pretrained(result.path)
    assert result.path == tmp_path / "drafter"
    assert result.parameters == sum(p.numel() for p in drafter.parameters())
    assert result.steps == 4
    assert result.train_seconds > 0
    assert math.isfinite(result.final_loss)
    # two epochs of all eight answers: slots 1 to 3 of every anchor, less those beyond the end
    slots = sum(min(3, answer - 1 - k) for _, answer in SHAPES for k in range(answer - 1))
    assert result.tokens == 2 * slots


def test_the_checkpoint_is_the_drafter_in_memory(target, rollouts, tmp_path, monkeypatch):
    kept = keep_drafter(monkeypatch)
    result = train(tmp_path, target, rollouts, num_layers=2, vocab="top:9")
    (drafter,) = kept
    loaded = DFlashDraftModel.from_pretrained(result.path).eval()
    assert_same(dict(drafter.state_dict()), dict(loaded.state_dict()))
    assert loaded.switches == drafter.switches
    given = {
        "position_ids": torch.arange(9)[None],
        "noise_embedding": drafter.embed_block(torch.tensor([3]), target.embedding),
        "target_hidden": features(target, rollouts).row(0)[None, :5],
    }
    with torch.no_grad():
        assert torch.equal(drafter.eval()(**given), loaded(**given))
    assert not list(tmp_path.glob(".drafter*"))


def test_every_parameter_is_trained_and_its_component_is_watched(target, rollouts, tmp_path):
    before = initial(target, rollouts)
    result = train(tmp_path, target, rollouts, recipe(steps=6))
    after = weights(result)
    moves = {name: float((after[name] - value).abs().max()) for name, value in before.items()}
    assert all(move > 0 for move in moves.values()), moves
    assert result.moved["q_norm"] == pytest.approx(moves["layers.0.self_attn.q_norm.weight"])
    assert result.moved["layers.0"] == pytest.approx(
        max(move for name, move in moves.items() if name.startswith("layers."))
    )
    assert result.moved["fc"] == pytest.approx(moves["fc.weight"])
    assert "mask_embed" not in result.moved


def test_what_a_drafter_lacks_has_no_move(target, rollouts, tmp_path):
    result = train(tmp_path, target, rollouts, attention={"qk_norm": "k"}, mask_embedding="learned")
    assert "q_norm" not in result.moved
    assert min(result.moved["k_norm"], result.moved["mask_embed"]) > 0


def test_a_replica_is_a_rerun_and_a_shift_another_seed(target, rollouts, tmp_path):
    plain = train(tmp_path / "plain", target, rollouts, seed=7)
    again = train(tmp_path / "again", target, rollouts, recipe(replica=1), seed=7)
    assert_same(weights(again), weights(plain))
    shifted = train(tmp_path / "shifted", target, rollouts, recipe(seed_shift=5), seed=2)
    assert_same(weights(shifted), weights(plain))
    assert shifted.final_loss == plain.final_loss  # order and anchors are the seventh seed's, too


def test_bf16_master_weights_would_freeze_the_norms(target, rollouts, tmp_path):
    """Why master weights are fp32: an update of 1e-3 is lost in a bf16 weight of 1."""
    moved = {}
    for dtype in (torch.bfloat16, torch.float32):
        norm = torch.nn.Parameter(torch.ones(8, dtype=dtype))
        optimizer = module.DrafterTraining.configure_optimizers(
            DrafterTraining(
                build_drafter(switches(), target, rollouts, recipe(), 0), None, recipe(lr=1e-3), 50
            )
        )["optimizer"]
        optimizer.param_groups[0]["params"] = [norm]
        for _ in range(20):
            norm.grad = torch.ones_like(norm)
            optimizer.step()
        moved[dtype] = float((norm.detach().float() - 1).abs().max())
    assert moved[torch.bfloat16] == 0
    assert moved[torch.float32] > 1e-3


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_master_weights_are_fp32(target, rollouts, tmp_path, precision, monkeypatch):
    kept = keep_drafter(monkeypatch)
    result = train(tmp_path, target, rollouts, recipe(precision=precision))
    assert {p.dtype for p in kept[0].parameters()} == {torch.float32}
    assert {v.dtype for v in weights(result).values()} == {torch.float32}
    assert all(v.isfinite().all() for v in weights(result).values())
    assert result.moved["q_norm"] > 0


def test_answers_too_long_or_too_short_are_left_out_with_their_features(target, tmp_path):
    shapes = [(30, 9), (3, 9), (4, 1), (2, 6)]
    rollouts = answers(target, shapes)
    config = recipe(sequences=2, max_length=12)
    assert trainable_rows(rollouts, 12) == [1, 3]
    filtered = train(tmp_path / "filtered", target, rollouts, config)
    kept = train(tmp_path / "kept", target, [rollouts[1], rollouts[3]], config)
    assert_same(weights(filtered), weights(kept))


def test_nothing_left_to_train_on_is_an_error(target, tmp_path):
    with pytest.raises(UserError, match=r"train.max_length=4.*2 given, none fits"):
        train(tmp_path, target, made_up([(3, 9), (2, 1)]), recipe(max_length=4))


def test_online_features_train_the_same_drafter(target, rollouts, tmp_path):
    online = OnlineFeatures(target, rollouts, TAPS, "float32")
    first = train(tmp_path / "online", target, rollouts, rows=online)
    second = train(tmp_path / "offline", target, rollouts)
    assert_same(weights(first), weights(second))


def test_a_drafter_without_features_needs_none(target, rollouts, tmp_path):
    chosen = switches(kv={"fusion": "none"})
    result = module.train_drafter(
        recipe(), chosen, target, rollouts, None, 0, tmp_path, progress=False
    )
    assert math.isfinite(result.final_loss)


@pytest.mark.parametrize("init", ["random", "target"])
def test_frequent_tokens_become_the_draft_vocabulary(target, rollouts, tmp_path, init):
    result = train(tmp_path, target, rollouts, recipe(init=init), vocab="top:5")
    loaded = DFlashDraftModel.from_pretrained(result.path)
    assert loaded.vocab_index.tolist() == frequent_tokens(rollouts, 5, 24).tolist()


def test_golden_frequent_tokens():
    rollouts = [
        dataclasses.replace(row, answer_ids=np.array(ids, dtype=np.int32))
        for row, ids in zip(made_up([(2, 1)] * 2), ([7, 7, 3, 3, 9], [3, 9, 5]), strict=True)
    ]  # 3 thrice, 7 and 9 twice, 5 once; prompts do not count
    assert frequent_tokens(rollouts, 1, 10).tolist() == [3]
    assert frequent_tokens(rollouts, 3, 10).tolist() == [3, 7, 9]
    assert frequent_tokens(rollouts, 5, 10).tolist() == [0, 3, 5, 7, 9]
    with pytest.raises(UserError, match=r"top:11.*at most top:10"):
        frequent_tokens(rollouts, 11, 10)


def test_an_unusable_mask_token_is_refused(target, rollouts, tmp_path):
    for wrong, message in ((None, "mask_token_id=None"), (23, "a stop token")):
        config = dataclasses.replace(target.config, mask_token_id=wrong)
        other = dataclasses.replace(target, config=config)
        with pytest.raises(UserError, match=message):
            train(tmp_path, other, rollouts)
        train(tmp_path / str(wrong), other, rollouts, mask_embedding="learned")


def test_epochs_become_steps():
    assert total_steps(TrainConfig(epochs=3, sequences=4), 9) == 9
    assert total_steps(TrainConfig(epochs=3, sequences=4), 8) == 6
    assert total_steps(TrainConfig(steps=5), 8) == 5


def test_every_step_is_logged_once(target, rollouts, tmp_path):
    train(tmp_path, target, rollouts, recipe(steps=5))
    (path,) = tmp_path.glob("log-*/metrics.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4]
    assert all(float(row["loss"]) > 0 and float(row["lr"]) >= 0 for row in rows)


def test_ctrl_c_is_an_interruption(target, rollouts, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(DrafterTraining, "training_step", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, target, rollouts)
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores further ones
    assert not (tmp_path / "drafter").exists()


def test_trainer_goes_where_the_target_is():
    cpu, second = torch.device("cpu"), torch.device("cuda:1")
    assert devices_of(recipe(), cpu) == 1
    assert devices_of(recipe(), second) == [1]
    assert devices_of(recipe(devices=2), second) == 2
    assert precision_of("32-true", second) == "32-true"
    assert precision_of("bf16-mixed", cpu) == "bf16-mixed"
    assert precision_of("auto", cpu) in ("32-true", "bf16-mixed")
