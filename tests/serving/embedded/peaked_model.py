"""A tiny model whose next token is ahead of the others by more than rounding."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 97


def peaked_model() -> LlamaForCausalLM:
    """The same large random weights on every call; 128 positions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()
