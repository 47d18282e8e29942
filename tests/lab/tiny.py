"""A target of a few thousand parameters with a tokenizer and a chat template, on disk."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<spare>")
MASK = SPECIAL.index("<mask>")


def save_tiny_target(directory: Path, layers: int = 6) -> Path:
    """A byte-level tokenizer and a random Llama, as ``from_pretrained`` wants them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<mask>", "<spare>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=vocab["<s>"],
        eos_token_id=vocab["</s>"],
        pad_token_id=vocab["<pad>"],
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # One channel is the same for every token, and the head holds it against the special
        # tokens: they are never sampled, as a mask token must not be.
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.normal_()
        embedding[:, -1] = 4.0
        head.normal_(std=0.5)
        head[:, -1] = 0.0
        head[[index for index, token in enumerate(SPECIAL) if token != "</s>"], -1] = -20.0
    model.save_pretrained(directory)
    return directory
