"""Bytes saved for the backward, counted without memory, against those of a pass that has some."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import dflash.model.blocks as blocks
from dflash.lab.experiment import load_experiment
from dflash.lab.plan.entries import make_plan
from dflash.lab.plan.memory import saved_bytes, training_memory
from dflash.model import DFlashDraftModel, TrainingLayout, drafter_config

ROWS, CONTEXT, BLOCKS = 2, 40, 6


def really_saved(cell, autocast: bool) -> int:
    """Bytes of the distinct storages that a real forward keeps, parameters left out."""
    config = drafter_config(cell.info.hf_config, cell.switches, cell.config.target.mask_token_id)
    draft = DFlashDraftModel(config)
    draft.config._attn_implementation = "blocks"
    own = {parameter.data_ptr() for parameter in draft.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def remember(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    layout = TrainingLayout(
        CONTEXT,
        torch.full((ROWS, BLOCKS), CONTEXT - 5),
        torch.ones(ROWS, BLOCKS, dtype=torch.bool),
        torch.full((ROWS,), CONTEXT),
        cell.switches.block_size,
    )
    width = cell.sizes.hidden
    mixed = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    with saved_tensors_hooks(remember, lambda tensor: tensor), mixed:
        draft(
            position_ids=layout.position_ids(),
            attention_mask=layout.mask(cell.switches, "blocks"),
            noise_embedding=torch.randn(ROWS, BLOCKS * cell.switches.block_size, width),
            target_hidden=torch.randn(ROWS, CONTEXT, width * len(cell.taps)),
        )
    return sum(kept.values())


@pytest.fixture
def cells(lab, small, small_overrides):
    return make_plan(lab, load_experiment(small, [*small_overrides, "drafter.num_layers=2"])).cells


def test_the_count_without_memory_is_the_real_one(cells, monkeypatch):
    """With the attention that GPUs run; a processor's kernel keeps less."""
    cell = cells[0]
    counted = saved_bytes(cell, ROWS, CONTEXT, BLOCKS)
    assert really_saved(cell, autocast=False) < counted
    monkeypatch.setattr(blocks, "merged_attention", blocks.two_part_attention)
    assert counted == pytest.approx(really_saved(cell, autocast=False), rel=0.02)


def test_bf16_keeps_less_than_the_estimate(cells, monkeypatch):
    monkeypatch.setattr(blocks, "merged_attention", blocks.two_part_attention)
    parameters = 2 * cells[0].parameters  # cast once, kept for the backward
    counted = saved_bytes(cells[0], ROWS, CONTEXT, BLOCKS)
    assert really_saved(cells[0], autocast=True) < counted + parameters


def test_the_parts(cells):
    control, bare, _ = (training_memory(cell) for cell in cells)
    assert control.states == 16 * cells[0].parameters
    norms = cells[0].parameters - cells[1].parameters
    assert control.states - bare.states == 16 * norms
    assert control.activations > bare.activations  # the norms save their inputs
    assert control.target == 4 * cells[0].sizes.parameters
    assert control.total == sum(vars(control).values())
