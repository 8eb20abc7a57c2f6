"""The package bitsandbytes, which keeps weights in 4 bits and moments in 8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.plugins.distribution import install_command

FOUR_BITS = "train.lora.base: nf4"
EIGHT_BITS = "train.optimizer: adamw_8bit"


def load_bitsandbytes(key: str) -> Any:
    """Import and return the package.

    Args:
        key: of the setting that needs it, for messages.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import bitsandbytes
    except ImportError:
        raise ConfigError(
            f"{key} needs the package bitsandbytes, which is not installed; run "
            f"{install_command('bits')}, or leave it out"
        ) from None
    return bitsandbytes


class FourBitLinear(nn.Module):
    """A linear layer whose weight is frozen, and in 4 bits."""

    def __init__(self, layer: nn.Linear, device: torch.device) -> None:
        super().__init__()
        blocks = load_bitsandbytes(FOUR_BITS).functional
        packed, state = blocks.quantize_4bit(
            layer.weight.data.to(device), quant_type="nf4", compress_statistics=True
        )
        self._state: Any = state
        self._dequantize = blocks.dequantize_4bit
        self.shape = layer.weight.shape
        """[out, in] of the whole weight."""
        self.weight = nn.Parameter(packed, requires_grad=False)
        """[about in * out / 2, 1] uint8"""
        self.bias = layer.bias

    def whole(self, packed: Tensor | None = None) -> Tensor:
        """[out, in] The weight as it computes, in the dtype that it had.

        Args:
            packed: the same numbers elsewhere.
        """
        given = self.weight if packed is None else packed
        self._state.to(given.device)
        return self._dequantize(given.data, self._state)

    def forward(self, x: Tensor) -> Tensor:
        """W x + b."""
        return (
            _FourBitProduct.apply(x, self)
            if self.bias is None
            else (_FourBitProduct.apply(x, self) + self.bias)
        )


class _FourBitProduct(torch.autograd.Function):
    """x W', with the weight dequantised again for the gradient in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        return nn.functional.linear(x, layer.whole())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] @ ctx.layer.whole(), None
