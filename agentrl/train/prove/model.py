"""A tiny random Llama whose every operation is float64, so that equal means equal to 1e-12.

The library's norms and rotary embedding compute in float32 whatever the model's dtype is; they are
replaced by ones that do not.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 61
"""Tokens the model knows."""
_HEAD_DIM = 8
_THETA = 10000.0


class TrueRMSNorm(nn.Module):
    """Root mean square norm in the dtype of its input."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Same shape as `hidden`."""
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.eps)


class TrueRotary(nn.Module):
    """Rotary embedding in the dtype of its input."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine by position."""
        even = torch.arange(0, self.head_dim, 2, dtype=hidden.dtype, device=hidden.device)
        angles = position_ids[..., None].to(hidden.dtype) * self.theta ** (-even / self.head_dim)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()


def exact_model(*, seed: int) -> Any:
    """Two layers, four query heads over two key heads, float64, on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=4 * _HEAD_DIM,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    model = model.to(torch.float64).eval()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm: Any = child
                setattr(module, name, TrueRMSNorm(norm.weight, norm.variance_epsilon))
    model.model.rotary_emb = TrueRotary(_HEAD_DIM, _THETA)
    return model


@torch.no_grad()
def neighbour(model: Any, *, seed: int, noise: float) -> Any:
    """A copy whose weights are off by normal noise: an older policy, or a reference."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for param in other.parameters():
        param += noise * torch.randn(param.shape, generator=generator, dtype=param.dtype)
    return other.requires_grad_(False)
