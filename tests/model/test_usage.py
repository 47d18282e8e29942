"""The published usage example, and how this attention differs from the standard one."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

from dflash.model import (
    DFlashDraftModel,
    DrafterSwitches,
    KVSwitches,
    Qwen3DFlashAttention,
    UserError,
)
from dflash.model.attention import AttentionComponents
from dflash.model.masks import Visibility, additive, decode_mask
from tests.model.toys import HIDDEN, MASK_TOKEN, VOCAB, toy_drafter, toy_switches

# As published, but for the first assignment, which fetched Qwen/Qwen3-4B's config from the hub.
EXAMPLE = """
import torch
from transformers import AutoConfig
from dflash.model import DFlashDraftModel

# Initialize the D-Flash draft model with Qwen3DFlashAttention

draft_model = DFlashDraftModel(config)

# Prepare dummy inputs

batch_size = 1
seq_length = 8
hidden_size = config.hidden_size

# Input IDs for draft tokens

input_ids = torch.randint(0, config.vocab_size, (batch_size, seq_length))

# Position IDs

position_ids = torch.arange(seq_length).unsqueeze(0)

# Target hidden states from the full model (simulated here)

target_hidden = torch.randn(batch_size, config.num_hidden_layers, hidden_size)

# Noise embedding (draft state)

noise_embedding = torch.randn(batch_size, seq_length, hidden_size)

# Forward pass through Qwen3DFlashAttention

outputs = draft_model(
    position_ids=position_ids,
    attention_mask=None,
    noise_embedding=noise_embedding,
    target_hidden=target_hidden,
    use_cache=False,
)

print(f"Output shape: {outputs.shape}")
print(f"Attention type: {type(draft_model.layers[0].self_attn).__name__}")
"""


def plain_config(layers: int) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=50,
    )


@pytest.mark.parametrize("layers", [1, 2, 4, 8, 12])
def test_the_published_example_runs(layers: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLE, {"config": plain_config(layers)})
    assert capsys.readouterr().out.splitlines() == [
        "Output shape: torch.Size([1, 8, 16])",
        "Attention type: Qwen3DFlashAttention",
    ]


def test_a_plain_config_gets_the_papers_defaults() -> None:
    draft = DFlashDraftModel(plain_config(12))
    assert draft.switches == DrafterSwitches(num_layers=12)
    assert draft.target_layer_ids == (1, 3, 5, 7, 9)
    assert (draft.block_size, draft.mask_token_id) == (16, None)
    shallow = DFlashDraftModel(plain_config(6))  # five distinct taps do not fit
    assert shallow.target_layer_ids == (1, 2, 3)


def test_the_mask_token_is_asked_for_only_where_it_is_needed() -> None:
    embedding = torch.nn.Embedding(50, 16)
    with pytest.raises(UserError, match="mask_token_id"):
        DFlashDraftModel(plain_config(3)).embed_block(torch.tensor([1]), embedding)


@pytest.mark.parametrize("name", ["reserved", "learned", "mean", "zero"])
def test_embedded_block(name: str) -> None:
    draft = toy_drafter(toy_switches(mask_embedding=name, block_size=3))
    embedding = torch.nn.Embedding(VOCAB, HIDDEN)
    block = draft.embed_block(torch.tensor([[4, 9]]), embedding)
    assert block.shape == (1, 2, 3, HIDDEN)
    assert torch.equal(block[0, :, 0], embedding.weight[[4, 9]])
    row = {
        "reserved": embedding.weight[MASK_TOKEN],
        "learned": draft.mask_embed,
        "mean": embedding.weight.mean(dim=0),
        "zero": torch.zeros(HIDDEN),
    }[name]
    torch.testing.assert_close(block[0, :, 1:], row.expand(2, 2, -1))


def test_embeddings_are_the_context_without_conditioning() -> None:
    embedding, ids = torch.nn.Embedding(VOCAB, HIDDEN), torch.tensor([[1, 2, 3]])
    draft = toy_drafter(toy_switches(kv__fusion="none"))
    assert not draft.reads_features
    assert draft.fc is None
    assert torch.equal(draft.context_of(ids, None, embedding), embedding(ids))
    with pytest.raises(UserError, match="features=None"):
        toy_drafter(toy_switches()).context_of(ids, None, embedding)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("bias", [True, False])
def test_draft_keys_and_a_causal_block_are_standard_attention(
    implementation: str, bias: bool
) -> None:
    config = plain_config(1)
    config.attention_bias, config._attn_implementation = bias, implementation
    switches = toy_switches(kv__source="draft", attention__block="causal", block_size=9)
    ours = Qwen3DFlashAttention(config, 0, AttentionComponents.of(config, switches))
    standard = Qwen3Attention(config, 0)
    for norm in (standard.q_norm, standard.k_norm):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    ours.load_state_dict(standard.state_dict(), strict=True)
    x = torch.randn(2, 9, 16)
    rotary = Qwen3RotaryEmbedding(config)(x, torch.arange(9)[None])
    visibility = Visibility.of(switches, training=False)
    mask = decode_mask(visibility, 0, 9, torch.device("cpu"))
    mask = additive(mask) if implementation == "eager" else mask
    causal = torch.full((9, 9), float("-inf")).triu(1)[None, None]
    expected, _ = standard(x, rotary, causal)
    found, _ = ours(x, x[:, :0], rotary, mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_eager_attention_returns_its_weights() -> None:
    config = plain_config(1)
    config._attn_implementation = "eager"
    attention = Qwen3DFlashAttention(config, 0)
    x, context = torch.randn(1, 4, 16), torch.randn(1, 6, 16)
    rotary = Qwen3RotaryEmbedding(config)(x, torch.arange(10)[None])
    _, weights = attention(x, context, rotary)
    assert weights.shape == (1, 4, 4, 10)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 4, 4))


def test_a_drafter_has_no_parameter_that_never_gets_a_gradient() -> None:
    """Distributed training refuses those, and they would count as parameters of an arm."""
    features, noise = torch.randn(1, 6, 5 * HIDDEN), torch.randn(1, 4, HIDDEN)
    for source in ("target+draft", "draft", "target"):
        for projection in ("shared", "separate"):
            kv = KVSwitches(source=source, projection=projection)
            draft = toy_drafter(DrafterSwitches(num_layers=2, block_size=4, kv=kv))
            draft(torch.arange(10)[None], None, noise, features).sum().backward()
            idle = [name for name, p in draft.named_parameters() if p.grad is None]
            assert not idle, (source, projection)


def test_every_pair_of_norm_and_rotation_orders() -> None:
    """Against the two sentences: normalise, then rotate; or the other way round."""
    config = plain_config(1)
    x = torch.randn(1, 5, 16)
    rotary = Qwen3RotaryEmbedding(config)(x, torch.arange(5)[None])

    def turn(heads: torch.Tensor) -> torch.Tensor:
        half = heads.shape[-1] // 2
        turned = torch.cat([-heads[..., half:], heads[..., :half]], dim=-1)
        return heads * rotary[0][:, None] + turned * rotary[1][:, None]

    def normed(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean_square = heads.square().mean(dim=-1, keepdim=True)
        return weight * heads / (mean_square + config.rms_norm_eps).sqrt()

    for which in ("both", "q", "k", "none"):
        for place in ("pre_rope", "post_rope"):
            switches = toy_switches(
                kv__source="draft",
                attention__qk_norm=which,
                attention__qk_norm_place=place,
            )
            ours = Qwen3DFlashAttention(config, 0, AttentionComponents.of(config, switches))
            weights = {}
            for name, norm in (("q", ours.q_norm), ("k", ours.k_norm)):
                if which in ("both", name):
                    weights[name] = torch.nn.init.uniform_(norm.weight, 0.5, 1.5)

            def encoded(
                projection: torch.nn.Module,
                name: str,
                weights: dict[str, torch.Tensor] = weights,
                place: str = place,
            ) -> torch.Tensor:
                heads = projection(x).view(1, 5, -1, 8).transpose(1, 2)
                if name in weights and place == "pre_rope":
                    heads = normed(heads, weights[name])
                heads = turn(heads)
                if name in weights and place == "post_rope":
                    heads = normed(heads, weights[name])
                return heads

            q = encoded(ours.q_proj, "q")
            k = encoded(ours.k_proj, "k").repeat_interleave(2, dim=1)
            v = ours.v_proj(x).view(1, 5, 2, 8).transpose(1, 2).repeat_interleave(2, dim=1)
            probabilities = (q @ k.transpose(2, 3) / 8**0.5).softmax(dim=-1)
            expected = ours.o_proj((probabilities @ v).transpose(1, 2).reshape(1, 5, -1))
            found, _ = ours(x, x[:, :0], rotary)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_generation_is_the_librarys_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    import dflash.decoding

    calls = []
    monkeypatch.setattr(dflash.decoding, "dflash_generate", lambda *args: calls.append(args) or 7)
    draft = toy_drafter(toy_switches())
    assert draft.spec_generate("target", "ids", 5, [2], 0.5) == 7
    assert calls == [(draft, "target", "ids", 5, [2], 0.5)]


def test_messages_have_the_shape_of_a_sentence() -> None:
    message = str(UserError.of("field", "value", "this, that"))
    assert re.fullmatch(r"field='value' is not valid; allowed: this, that", message)
