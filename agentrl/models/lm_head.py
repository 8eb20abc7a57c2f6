"""Logits of a language-model head in float32, from bfloat16 weights as they are.

A bfloat16 product is summed in float32 and rounded when it is stored, by up to 2^-9 of its size:
0.03 for a logit of 16, before the softmax sees it. With `model.head_dtype: float32` sampler and
trainer both go without that rounding. Nothing keeps a float32 copy of the weights, which would be
out of date after an update of the weights or of the embedding that they are tied to.

Legend: `_N` tokens, `_V` vocabulary, `_E` width of the hidden states.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_FEW = 1 << 16
"""Multiplications below which torch has other kernels, and a cast costs nothing."""


def use_float32_head(model: Any) -> None:
    """Mark `model`, so that the engine and the trainer that run it form float32 logits."""
    # Not in `model.config`: it would be written into checkpoints, where vLLM reads it.
    model.agentrl_float32_head = True


def has_float32_head(model: Any) -> bool:
    """True if `use_float32_head` marked the model."""
    return bool(getattr(model, "agentrl_float32_head", False))


def is_narrow(weight_VE: Tensor) -> bool:
    """True for a dtype that rounds more than float32: without it, there is nothing to mend."""
    return torch.promote_types(weight_VE.dtype, torch.float32) != weight_VE.dtype


def float32_product(hidden_NE: Tensor, weight_VE: Tensor) -> tuple[Tensor, Tensor | None]:
    """hidden @ weight.T in float32, or two narrow tensors whose float32 sum it is.

    A GPU stores its float32 sums (`out_dtype`, as vLLM does, from torch 2.8). torch has no such
    product for CPUs, and float32 ones take two to ten times as long there. So the product c is
    formed as usual, and a second one, `hidden @ weight.T - c`, gives what its rounding took away:
    oneDNN subtracts in float32 before it rounds. c + rest is right to 2^-17 of a logit.

    Args:
        hidden_NE: [N, E], in the dtype of the weight.
        weight_VE: [V, E] of the head, bfloat16 or float16.

    Returns:
        `(product_NV, None)` in float32, or `(c_NV, rest_NV)` in the dtype of the weight.
    """
    transposed = weight_VE.t()
    if hidden_NE.device.type == "cuda" and _stores_its_sums():
        return torch.mm(hidden_NE, transposed, out_dtype=torch.float32), None
    many = hidden_NE.numel() * weight_VE.shape[0] >= _FEW
    if many and hidden_NE.device.type == "cpu" and _subtracts_before_rounding(weight_VE.dtype):
        product = hidden_NE @ transposed
        return product, torch.addmm(product, hidden_NE, transposed, beta=-1)
    return hidden_NE.float() @ transposed.float(), None


def float32_logits(hidden_NE: Tensor, head: Any) -> Tensor:
    """[N, V] logits in float32 of a linear `head` without calling it."""
    product, rest = float32_product(hidden_NE, head.weight)
    logits = product.float()
    if rest is not None:
        logits += rest
    bias = getattr(head, "bias", None)
    return logits if bias is None else logits.add_(bias)


@cache
def _stores_its_sums() -> bool:
    """True if this torch has products that are stored wider than their factors (2.8 and newer)."""
    return "dtype" in torch.ops.aten.mm.overloads()


@cache
def _subtracts_before_rounding(dtype: torch.dtype) -> bool:
    """True if `addmm` of this processor adds in float32 and rounds once; tried on a product."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        hidden = torch.randn(16, 64, generator=generator).to(dtype)
        weight = torch.randn(256, 64, generator=generator).to(dtype)
        product = hidden @ weight.t()
        rest = torch.addmm(product, hidden, weight.t(), beta=-1)
        exact = hidden.double() @ weight.double().t()
        off = (product.double() + rest.double() - exact).abs().max() / exact.abs().max()
    return float(off) < 2.0 * torch.finfo(dtype).eps ** 2
