from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dflash.data.anchors import eligible
from dflash.data.collate import BlockBatch, collate
from dflash.model import UserError
from dflash.training.module import block_states, token_rows
from tests.training.steps import run_steps, training
from tests.training.toys import SHAPES, answers, features, recipe, toy


@pytest.fixture(scope="module")
def target():
    return toy(tied=False)


@pytest.fixture(scope="module")
def rollouts(target):
    return answers(target, SHAPES)


def batch_of(target, rollouts, rows=(0, 2, 3), every: int = 2, block_size: int = 4) -> BlockBatch:
    """Overlapping blocks in rows of different lengths; the last row has fewest."""
    positions = [
        eligible(len(rollouts[row].prompt_ids), len(rollouts[row].answer_ids)) for row in rows
    ]
    anchors = [chosen[::every] for chosen in positions]
    return collate(rollouts, features(target, rollouts), list(rows), anchors, block_size)


# The loss of a global batch does not depend on how it is cut.


def test_micro_batches_change_neither_loss_nor_gradients(target, rollouts, tmp_path):
    runs = {}
    for micro_batch in (None, 4, 3, 1):
        config = recipe(steps=1, sequences=8, micro_batch=micro_batch, clip=1e9)
        module = training(target, rollouts, config, num_layers=2)
        runs[micro_batch] = run_steps(module, target, rollouts, tmp_path / str(micro_batch))
    whole = runs.pop(None)
    assert whole.gradients[0].keys() == dict(module.drafter.named_parameters()).keys()
    for parts in runs.values():
        assert parts.losses == pytest.approx(whole.losses, rel=1e-5)
        assert parts.supervised == whole.supervised
        for name, gradient in whole.gradients[0].items():
            scale = gradient.abs().max().item()
            assert scale > 0, name
            torch.testing.assert_close(
                parts.gradients[0][name], gradient, rtol=1e-4, atol=1e-5 * scale
            )


def test_the_loss_is_the_weighted_mean_over_supervised_slots(target, rollouts, tmp_path):
    config = recipe(steps=1, sequences=8, anchors="all")
    module = training(target, rollouts, config)
    batch = batch_of(target, rollouts, rows=range(8), every=1)
    with torch.no_grad():
        hidden = block_states(module.drafter, batch, target.embedding, "blocks")
        losses = F.cross_entropy(
            target.head(hidden).flatten(0, 2), batch.labels.flatten(), reduction="none"
        )
    gamma = config.loss.gamma_for(4)
    slots = torch.arange(4).expand_as(batch.labels).flatten()
    weights = torch.exp(-(slots - 1) / gamma) * (batch.labels.flatten() != -100)
    recorded = run_steps(module, target, rollouts, tmp_path)
    assert recorded.losses[0] == pytest.approx(float((weights * losses).sum() / weights.sum()))
    assert recorded.supervised[0] == int((batch.labels >= 0).sum())


def test_the_gradient_is_clipped_by_its_norm(target, rollouts, tmp_path):
    module = training(target, rollouts, recipe(steps=1, clip=0.01))
    gradients = run_steps(module, target, rollouts, tmp_path).gradients[0]
    norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)


# Which labels are learned.


def test_labels_outside_the_draft_vocabulary_are_unsupervised(target, rollouts):
    module = training(target, rollouts, vocab="top:3")
    kept = module.drafter.vocab_index.tolist()
    rows = token_rows(module.drafter)
    assert rows[kept].tolist() == [0, 1, 2]
    assert (rows == -100).sum() == target.vocab_size - 3
    outside = next(token for token in range(target.vocab_size) if token not in kept)
    labels = torch.tensor([[-100, kept[2], outside, kept[0]]])
    assert module.draft_labels(labels).tolist() == [[-100, 2, -100, 0]]


@pytest.mark.parametrize("vocab", ["full", "top:9"])
@pytest.mark.parametrize("bias", [False, True])
def test_numerator_uses_the_logits_that_decoding_will_use(target, rollouts, vocab, bias):
    head = nn.Linear(target.hidden_size, target.vocab_size, bias=bias).requires_grad_(False)
    module = training(target, rollouts, vocab=vocab)
    module.borrowed.head = head
    batch = batch_of(target, rollouts)
    labels = module.draft_labels(batch.labels)
    assert vocab == "full" or (labels >= 0).sum() < (batch.labels >= 0).sum()
    weights = (labels >= 0).float() * torch.rand(labels.shape)
    with torch.no_grad():
        hidden = block_states(module.drafter, batch, target.embedding, "blocks")
        logits = module.drafter.draft_logits(hidden, head)
        ids = module.drafter.to_token_ids(logits.argmax(-1))
    expected = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
    value = module.numerator(batch, labels, weights)
    torch.testing.assert_close(value, (expected * weights.flatten()).sum(), rtol=1e-5, atol=1e-5)
    assert ids.shape == batch.labels.shape


# Nothing to learn from.


@pytest.mark.parametrize("attention", ["blocks", "sdpa", "eager"])
def test_a_row_without_anchors_is_harmless(target, rollouts, attention):
    module = training(target, rollouts, recipe(attention=attention), num_layers=2)
    full = batch_of(target, rollouts)
    valid = full.valid.clone()
    valid[1] = False
    labels = torch.where(valid[..., None], full.labels, -100)
    emptied = dataclasses.replace(full, valid=valid, labels=labels, anchors=full.anchors * valid)
    alone = collate(
        rollouts,
        features(target, rollouts),
        [0, 3],
        [full.anchors[row][full.valid[row]].numpy() for row in (0, 2)],
        4,
    )
    values, gradients = [], []
    for batch in (emptied, alone):
        module.drafter.zero_grad()
        weights = (batch.labels >= 0).float()
        loss = module.numerator(batch, batch.labels, weights)
        loss.backward()
        values.append(loss.detach())
        gradients.append([p.grad.clone() for p in module.drafter.parameters()])
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_micro_batch_without_anchors_is_zero_with_a_gradient_of_zero(target, rollouts):
    module = training(target, rollouts)
    none = [np.zeros(0, dtype=np.int64)] * 2
    batch = collate(rollouts, features(target, rollouts), [0, 1], none, 4)
    loss = module.numerator(batch, batch.labels, torch.zeros(batch.labels.shape))
    loss.backward()
    assert loss.item() == 0
    for parameter in module.drafter.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


def test_a_step_without_anything_supervised_changes_nothing(
    target, rollouts, tmp_path, monkeypatch
):
    said = {int(token) for row in rollouts for token in row.token_ids}
    unsaid = sorted(set(range(target.vocab_size)) - said)[:2]
    monkeypatch.setattr("dflash.training.run.frequent_tokens", lambda *_: np.array(unsaid))
    module = training(target, rollouts, recipe(steps=2), vocab="top:2")
    before = {name: value.clone() for name, value in module.drafter.state_dict().items()}
    recorded = run_steps(module, target, rollouts, tmp_path)
    assert (recorded.losses, recorded.supervised) == ([0, 0], [0, 0])
    for name, value in module.drafter.state_dict().items():
        assert torch.equal(value, before[name])


# What must not be seen. The control arm sees everything it may; nothing else may move a bit.


def states_and_gradient(module, batch: BlockBatch, target, row: int, block: int):
    """States of one block, and the gradient of their sum with respect to features and tokens."""
    given = batch.features.clone().requires_grad_()
    embedding = target.embedding(batch.token_ids).detach().requires_grad_()
    layer = dataclasses.replace(batch, features=given)

    def embed(ids: torch.Tensor) -> torch.Tensor:
        if ids.shape == batch.token_ids.shape and torch.equal(ids, batch.token_ids):
            return embedding
        if ids.shape == batch.anchors.shape:
            rows = torch.arange(len(ids))[:, None]
            return embedding[rows, batch.anchors]
        return target.embedding(ids)

    embed.weight = target.embedding.weight
    states = block_states(module.drafter, layer, embed, module.config.attention)[row, block]
    (states * torch.linspace(0.5, 1.5, states.numel()).view_as(states)).sum().backward()
    tokens = torch.zeros_like(embedding) if embedding.grad is None else embedding.grad
    features_grad = torch.zeros_like(given) if given.grad is None else given.grad
    return states.detach(), features_grad.abs().sum(-1), tokens.abs().sum(-1)


@pytest.mark.parametrize("attention", ["blocks", "sdpa", "eager"])
@pytest.mark.parametrize("fusion", ["fused", "input", "none"])
def test_a_block_sees_nothing_at_or_after_its_anchor(target, rollouts, attention, fusion):
    module = training(
        target, rollouts, recipe(attention=attention), num_layers=2, kv={"fusion": fusion}
    )
    batch = batch_of(target, rollouts)
    row, block = 0, 2
    anchor, length = int(batch.anchors[row, block]), int(batch.lengths[row])
    states, features_grad, tokens_grad = states_and_gradient(module, batch, target, row, block)

    wild = dataclasses.replace(batch, features=batch.features.clone(), token_ids=batch.token_ids)
    wild.features[row, anchor:] = torch.randn_like(wild.features[row, anchor:]) * 9
    others = [index for index in range(len(batch.lengths)) if index != row]
    wild.features[others] = torch.randn_like(wild.features[others]) * 9
    tokens = batch.token_ids.clone()
    tokens[row, anchor + 1 :] = (tokens[row, anchor + 1 :] + 7) % 20
    tokens[others] = (tokens[others] + 3) % 20
    wild = dataclasses.replace(wild, token_ids=tokens)
    perturbed, _, _ = states_and_gradient(module, wild, target, row, block)
    assert torch.equal(states, perturbed)

    assert anchor < length - 1
    assert not features_grad[row, anchor:].any()
    assert not features_grad[others].any()
    assert not tokens_grad[row, anchor + 1 :].any()
    assert not tokens_grad[others].any()
    if fusion == "fused":  # and the rest is really seen
        assert (features_grad[row, :anchor] > 0).all()
    if fusion == "input":
        assert features_grad[row, anchor - 1] > 0
    assert tokens_grad[row, anchor] > 0


def test_the_leak_control_does_leak(target, rollouts):
    batch = batch_of(target, rollouts)
    anchor = int(batch.anchors[0, 2])
    module = training(target, rollouts, attention={"leak": 1})
    _, gradient, _ = states_and_gradient(module, batch, target, 0, 2)
    assert gradient[0, anchor] > 0
    assert not gradient[0, anchor + 1 :].any()


def test_many_blocks_without_a_mask_are_refused(target, rollouts):
    module = training(target, rollouts)
    batch = batch_of(target, rollouts)
    noise = module.drafter.embed_block(batch.anchor_ids, target.embedding).flatten(1, 2)
    slots = batch.anchors[..., None] + torch.arange(4)
    with pytest.raises(UserError, match="without an attention_mask"):
        module.drafter(
            position_ids=slots.flatten(1), noise_embedding=noise, target_hidden=batch.features
        )


# The target is borrowed.


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_stay_the_targets_own(tied, tmp_path):
    target = toy(tied=tied)
    rollouts = answers(target, SHAPES)
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    module = training(target, rollouts, recipe(checkpoint_every=1))
    run_steps(module, target, rollouts, tmp_path)
    weight, _ = module.drafter.head_rows(module.borrowed.head)
    assert weight.data_ptr() == target.model.lm_head.weight.data_ptr()
    embedding = module.borrowed.embedding.weight
    assert embedding.data_ptr() == target.model.model.embed_tokens.weight.data_ptr()
    assert (embedding.data_ptr() == weight.data_ptr()) == tied
    lent = {p.data_ptr() for p in target.model.parameters()}
    ours = [p.data_ptr() for p in module.drafter.parameters()]
    assert not lent.intersection(p.data_ptr() for p in module.parameters())
    (group,) = module.trainer.optimizers[0].param_groups
    assert [p.data_ptr() for p in group["params"]] == ours
    assert all(p.grad is None for p in target.model.parameters())
    for name, value in target.model.state_dict().items():
        assert torch.equal(value, before[name])
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    names = {f"drafter.{name}" for name in module.drafter.state_dict()}
    assert set(saved["state_dict"]) == names
    assert not any("embed_tokens" in name or "lm_head" in name for name in names)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_implementations_train_alike(target, rollouts, attention, tmp_path):
    runs = []
    for name in ("blocks", attention):
        module = training(target, rollouts, recipe(steps=2, attention=name, clip=1e9), num_layers=2)
        runs.append(run_steps(module, target, rollouts, tmp_path / name))
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-4)
    for name, gradient in runs[0].gradients[0].items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(
            gradient, runs[1].gradients[0][name], rtol=1e-3, atol=1e-4 * scale
        )


def test_a_bf16_target_trains_an_fp32_drafter(rollouts, tmp_path):
    target = toy(tied=False)
    target.model.bfloat16()
    module = training(target, rollouts, recipe(steps=1))
    recorded = run_steps(module, target, rollouts, tmp_path)
    assert math.isfinite(recorded.losses[0])
    assert all(g.dtype == torch.float32 for g in recorded.gradients[0].values())
