"""Operations counted by formula equal those that PyTorch counts while real models run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from dflash.model import TrainingLayout, crop_to, new_cache
from dflash.model.flops import (
    Sizes,
    Work,
    draft_vocab,
    forward_flops,
    target_flops,
    training_flops,
)
from dflash.training.losses import block_loss
from tests.model.toys import (
    AXES,
    HIDDEN,
    VOCAB,
    pairwise_combinations,
    target_config,
    toy_drafter,
    toy_switches,
)

TAPS, CONTEXT = 5, 11
SIZES = Sizes.of(target_config())
SHAPED = [  # the switches that change how much is computed, on top of who sees whom
    toy_switches(),
    toy_switches(num_layers=3, block_size=6, mlp_size=20),
    toy_switches(mask_embedding="learned", kv__projection="separate"),
    toy_switches(kv__fusion="none", features__norm=False),
    *pairwise_combinations({name: AXES[name] for name in AXES if name.startswith("kv.")}),
]


def counted(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def embedded(switches) -> tuple[nn.Embedding, torch.Tensor | None]:
    embedding = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
    return embedding, torch.randn(1, CONTEXT, TAPS * HIDDEN)


@pytest.mark.parametrize("switches", SHAPED, ids=repr)
def test_a_cached_draft_step(switches):
    """Six features are cached, five are new."""
    draft = toy_drafter(switches)
    draft.config._attn_implementation = "eager"
    embedding, features = embedded(switches)
    ids = torch.arange(CONTEXT)[None]
    context = draft.context_of(ids, features, embedding)
    cache, head = new_cache(), nn.Linear(HIDDEN, VOCAB, bias=False)

    def step(start: int, stop: int) -> torch.Tensor:
        return draft(
            position_ids=torch.arange(start, stop + draft.block_size)[None],
            noise_embedding=draft.embed_block(torch.tensor([1]), embedding),
            target_hidden=context[:, start:stop],
            past_key_values=cache,
            use_cache=True,
        )

    step(0, 6)
    crop_to(cache, 6)
    real = counted(lambda: draft.draft_logits(step(6, CONTEXT)[:, 1:], head))
    work = Work.of_draft_step(CONTEXT, switches.block_size, CONTEXT - 6)
    assert forward_flops(SIZES, switches, TAPS, work).total == real


@pytest.mark.parametrize("switches", SHAPED, ids=repr)
def test_a_training_step_of_one_block(switches):
    """One block: then dense attention scores exactly the pairs that the formula counts."""
    draft = toy_drafter(switches)
    draft.config._attn_implementation = "eager"
    embedding, features = embedded(switches)
    layout = TrainingLayout(
        CONTEXT,
        torch.tensor([[7]]),
        torch.tensor([[True]]),
        torch.tensor([CONTEXT]),
        draft.block_size,
    )
    ids, slots = torch.arange(CONTEXT)[None], draft.block_size
    weights = torch.arange(slots).clamp(max=1).float()[None, None]
    head = torch.randn(VOCAB, HIDDEN)

    def step() -> None:
        hidden = draft(
            position_ids=layout.position_ids(),
            attention_mask=layout.mask(switches, "eager"),
            noise_embedding=draft.embed_block(torch.tensor([[1]]), embedding).flatten(1, 2),
            target_hidden=draft.context_of(ids, features, embedding),
        )
        labels = torch.ones(1, 1, slots, dtype=torch.long)
        block_loss(hidden[:, None], head, None, labels, weights).backward()

    work = Work(CONTEXT, slots, slots * CONTEXT, slots**2, slots - 1)
    assert training_flops(SIZES, switches, TAPS, work).total == counted(step)


def test_the_target_in_whole_and_up_to_a_tap():
    config = target_config(num_hidden_layers=4, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model, sizes, length = LlamaForCausalLM(config), Sizes.of(config), 9
    ids = torch.arange(length)[None]
    whole = target_flops(sizes, length, length**2, scored=length)  # eager scores every pair
    assert whole == counted(lambda: model(ids))
    layers = target_flops(sizes, length, length**2)
    assert layers == counted(lambda: model.model(ids))
    assert target_flops(sizes, length, length**2, layers=1) * 4 == layers


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_the_target(tied):
    config = target_config(tie_word_embeddings=tied)
    model = LlamaForCausalLM(config)
    norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    assert Sizes.of(config).parameters == sum(p.numel() for p in model.parameters()) - norms


def test_a_smaller_draft_vocabulary_costs_less():
    switches = toy_switches(vocab="top:10")
    work = Work.of_draft_step(CONTEXT, 4, 4)
    assert draft_vocab(SIZES, switches) == 10
    small, full = (forward_flops(SIZES, s, TAPS, work).head for s in (switches, toy_switches()))
    assert small * VOCAB == full * 10


def test_work_adds_up():
    switches = toy_switches()
    one = Work(10, 8, 80, 32, 6)
    assert one * 3 == Work(30, 24, 240, 96, 18)
    single, triple = (training_flops(SIZES, switches, TAPS, work) for work in (one, one * 3))
    assert triple.total == 3 * single.total


def test_sizes_of_a_config_without_head_dim():
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    assert (Sizes.of(config).head_dim, Sizes.of(config).key_width) == (16, 32)
