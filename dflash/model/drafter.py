"""The DFlash drafter: a block of mask slots in, hidden states of the whole block out (paper §4)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import initialization
from transformers.cache_utils import Cache
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Config,
    Qwen3PreTrainedModel,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
)

from dflash.model import blocks  # noqa: F401  registers the attention function "blocks"
from dflash.model.conditioning import (
    INJECTIONS,
    build_fc,
    build_hidden_norm,
    fuse,
    uses_context,
)
from dflash.model.config import (
    LAB_KEY,
    VOCAB_HASH_KEY,
    check_supported,
    mask_token_id,
    switches_of,
    target_layer_ids,
)
from dflash.model.errors import UserError
from dflash.model.layer import Qwen3DFlashDecoderLayer
from dflash.model.mask_embedding import MASK_ROWS
from dflash.model.masks import Visibility, decode_mask, in_form
from dflash.model.memory import MadeOf
from dflash.model.switches import argument_of
from dflash.model.vocab import checked_vocabulary, vocabulary_hash


class DFlashDraftModel(Qwen3PreTrainedModel):
    """A drafter without embedding and head: both are the target's own, lent at each call.

    Attributes:
        switches: every choice that makes this drafter differ from the paper's.
        target_layer_ids: the target layers whose outputs are its features, F of them.
        block_size: slots per block, the anchor included.
        mask_token_id: the reserved token of the mask slots, when the config names one.
        reads_features: False when its context is the committed tokens' embeddings instead.
    """

    config_class = Qwen3Config
    _no_split_modules: ClassVar[list[str]] = ["Qwen3DFlashDecoderLayer"]

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        check_supported(config)
        self.switches = switches_of(config)
        self.target_layer_ids = target_layer_ids(config)
        self.block_size = self.switches.block_size
        self.mask_token_id = mask_token_id(config)
        self.reads_features = self.switches.kv.fusion != "none"
        self.layers = nn.ModuleList(
            Qwen3DFlashDecoderLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.fc = build_fc(config, self.switches, len(self.target_layer_ids))
        self.hidden_norm = build_hidden_norm(config, self.switches)
        self.inject = INJECTIONS[self.switches.kv.fusion]
        self.mask_row = MASK_ROWS[self.switches.mask_embedding]
        learned = self.switches.mask_embedding == "learned"
        self.mask_embed = nn.Parameter(torch.empty(config.hidden_size)) if learned else None
        rows = None
        if self.switches.vocab != "full":
            rows = torch.full((argument_of(self.switches.vocab),), -1)
        self.register_buffer("d2t", rows)
        self._draft_rows = MadeOf(self._gather)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and self.mask_embed is not None:
            initialization.normal_(self.mask_embed, std=self.config.initializer_range)

    def forward(
        self,
        position_ids: Tensor,
        attention_mask: Any = None,
        noise_embedding: Tensor | None = None,
        target_hidden: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Denoise blocks in one pass.

        Args:
            position_ids: ``[B, C+Q]`` absolute positions of the new context, then of the slots; or
                ``[B, Q]`` of the slots alone, the context then lies directly before them.
            attention_mask: None for one block per row (a decode step): the mask follows from the
                switches. For many blocks, ``TrainingLayout.mask`` of the same implementation.
            noise_embedding: ``[B, Q, H]`` from :meth:`embed_block`, flattened over blocks.
            target_hidden: ``[B, C, F*H]`` features of the new context, see :meth:`context_of`;
                ``[B, C, H]`` is taken as already fused and normalised.
            past_key_values: cache of the earlier context (not ``use_cache`` without one). The block
                is appended too; drop it with :func:`dflash.model.cache.crop_to`.
            use_cache: accepted for compatibility; a cache that is given is used.

        Returns:
            ``[B, Q, H]`` hidden states after the final norm, not logits.
        """
        if noise_embedding is None:
            raise UserError.of("noise_embedding", None, "the embedded block [B, Q, H]")
        slots = noise_embedding.shape[1]
        context = self._context(target_hidden, noise_embedding)
        positions = _all_positions(position_ids, context.shape[1], slots)
        cached = 0 if past_key_values is None else past_key_values.get_seq_length()
        if attention_mask is None:
            attention_mask = self._decode_mask(cached + context.shape[1], slots)
            blocks_of = slots
        else:
            blocks_of = self.block_size
        # index of each block's latest committed feature among the new ones, [B, N]
        latest = positions[:, context.shape[1] :: blocks_of] - 1 - positions[:, :1]
        hidden = self.inject(noise_embedding, context, latest.expand(len(context), -1))
        rotary = self.rotary_emb(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, context, rotary, attention_mask, past_key_values, **kwargs)
        return self.norm(hidden)

    def _context(self, target_hidden: Tensor | None, noise: Tensor) -> Tensor:
        """``[B, C, H]``; the drafter that uses no context still counts its positions."""
        if target_hidden is None:
            return noise[:, :0]
        if not uses_context(self.switches):
            return target_hidden[..., : noise.shape[-1]]
        return fuse(target_hidden, self.fc, self.hidden_norm, noise.shape[-1])

    def _decode_mask(self, context_length: int, slots: int) -> Tensor | None:
        if slots > self.block_size:
            allowed = f"at most block_size={self.block_size} slots without an attention_mask"
            raise UserError.of("noise_embedding.shape[1]", slots, allowed)
        visibility = Visibility.of(self.switches, training=False)
        if not visibility.block_keys and context_length == 0:
            raise UserError.of("target_hidden", None, "at least one feature when kv.source=target")
        mask = decode_mask(visibility, context_length, slots, self.device)
        return in_form(mask, self.config._attn_implementation)

    def embed_block(self, anchor_ids: Tensor, embedding: nn.Module) -> Tensor:
        """What the slots of a block are fed.

        Args:
            anchor_ids: ``[...]`` token ids.
            embedding: the target's own.

        Returns:
            ``[..., block_size, H]``: the anchor's embedding, then mask embeddings.

        Raises:
            UserError: ``mask_embedding=reserved`` and the config names no mask token.
        """
        anchors = embedding(anchor_ids)[..., None, :]
        row = self.mask_row(embedding, self.mask_token_id, self.mask_embed).to(anchors.dtype)
        shape = (*anchor_ids.shape, self.block_size - 1, row.shape[-1])
        return torch.cat([anchors, row.expand(shape)], dim=-2)

    def context_of(
        self, token_ids: Tensor, features: Tensor | None, embedding: nn.Module
    ) -> Tensor:
        """The ``target_hidden`` this drafter wants for committed tokens ``[B, C]``."""
        if not self.reads_features:
            return embedding(token_ids)
        if features is None:
            raise UserError.of("features", None, "target features unless kv.fusion=none")
        return features

    @property
    def vocab_index(self) -> Tensor | None:
        """``[V_draft]`` token id of each draft-vocabulary row; None for the full vocabulary.

        Raises:
            UserError: ``vocab=top:<n>`` and :meth:`set_vocab` was never called.
        """
        if self.d2t is not None and VOCAB_HASH_KEY not in getattr(self.config, LAB_KEY):
            raise UserError.of("vocab", self.switches.vocab, "set_vocab(token_ids) first")
        return self.d2t

    def set_vocab(self, token_ids: Tensor) -> None:
        """Fix the draft vocabulary of ``vocab=top:<n>``; its hash goes into the config.

        Raises:
            UserError: the vocabulary is full, or the ids do not fit it.
        """
        if self.d2t is None:
            raise UserError.of("vocab", "full", "top:<n> to set a vocabulary")
        ids = checked_vocabulary(token_ids, len(self.d2t), self.config.vocab_size)
        self.d2t.copy_(ids)
        self._draft_rows = MadeOf(self._gather)
        getattr(self.config, LAB_KEY)[VOCAB_HASH_KEY] = vocabulary_hash(ids)

    def draft_logits(self, hidden: Tensor, head: nn.Module) -> Tensor:
        """Score ``[..., H]`` with the target's frozen head: ``[..., V_draft]``."""
        return nn.functional.linear(hidden, *self.head_rows(head))

    def head_rows(self, head: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Weight ``[V_draft, H]`` and bias ``[V_draft]`` of the frozen head's draft vocabulary.

        The rows are gathered once for each head; the full vocabulary is the head's own memory.
        """
        weight, bias = cast(Tensor, head.weight), cast("Tensor | None", getattr(head, "bias", None))
        if self.vocab_index is None:
            return weight, bias
        return self._draft_rows(weight), None if bias is None else self._draft_rows(bias)

    def _gather(self, values: Tensor) -> Tensor:
        return values[self.vocab_index]

    def to_token_ids(self, draft_ids: Tensor) -> Tensor:
        """Rows of the draft vocabulary to token ids."""
        rows = self.vocab_index
        return draft_ids if rows is None else rows[draft_ids]

    def spec_generate(
        self,
        target: Any,
        input_ids: Tensor,
        max_new_tokens: int,
        stop_token_ids: list[int] | None,
        temperature: float = 0.0,
    ) -> Tensor:
        """Speculative decoding with this drafter; see :func:`dflash.decoding.dflash_generate`."""
        from dflash.decoding import dflash_generate  # the one upward import: a convenience

        output_ids = dflash_generate(
            self, target, input_ids, max_new_tokens, stop_token_ids, temperature
        )
        return cast(Tensor, output_ids)

    @classmethod
    def from_pretrained(cls, path: Any, *args: Any, **kwargs: Any) -> DFlashDraftModel:
        """Load a checkpoint in the public layout, strictly.

        Raises:
            UserError: a tensor is missing, unexpected or of another shape, or the draft vocabulary
                is not the one the config was saved with.
        """
        # Shapes are reported with the rest, so that every problem reads the same.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = super().from_pretrained(path, *args, **kwargs)
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if info[problem]:
                raise UserError.of(f"checkpoint {problem}", sorted(map(str, info[problem])), "none")
        model._check_vocab(path)
        return model

    def _check_vocab(self, path: Any) -> None:
        if self.d2t is None:
            return
        stated = getattr(self.config, LAB_KEY).get(VOCAB_HASH_KEY)
        found = vocabulary_hash(self.d2t)
        if stated != found:
            raise UserError.of(f"{path}: d2t", found, f"the config's {VOCAB_HASH_KEY}={stated}")


def _all_positions(position_ids: Tensor, context: int, slots: int) -> Tensor:
    """``[B, C+Q]`` from either form that the forward accepts."""
    given = position_ids.shape[1]
    if given == context + slots:
        return position_ids
    if given != slots:
        raise UserError.of(
            "position_ids.shape[1]", given, f"{slots} or {context + slots} positions"
        )
    before = torch.arange(-context, 0, device=position_ids.device)
    return torch.cat([position_ids[:, :1] + before, position_ids], dim=1)
