"""Weights below adapters in 4 bits (QLoRA, https://arxiv.org/abs/2305.14314), by bitsandbytes.

Normal-float blocks of 64, whose scales are in 8 bits. A layer computes with its weight dequantised
to the dtype that it had, in the forward pass and once more in the backward pass, so that the whole
weight exists for one layer at a time. All that reads the weights of the model (checkpoints,
engines) gets the dequantised ones: the model that is trained, not the one in the folder.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agentrl.errors import ConfigError
from agentrl.models.bits import FOUR_BITS, FourBitLinear
from agentrl.train.model.lora import adapted_layers


@torch.no_grad()
def keep_in_four_bits(model: Any, device: torch.device) -> None:
    """Replace the layers below adapters, one after the other, by such of 4 bits on `device`.

    Args:
        model: with adapters, its other weights wherever they are.
        device: that it will compute on.

    Raises:
        ConfigError: bitsandbytes is not installed, or a layer is no plain linear one.
    """
    for name, layer in adapted_layers(model):
        if type(layer.base_layer) is not nn.Linear:
            raise ConfigError(
                f"{FOUR_BITS}: layer {name} of {type(model).__name__} is a "
                f"{type(layer.base_layer).__name__}, and only linear layers can be kept in 4 bits; "
                "leave train.lora.base out, or name other train.lora.targets"
            )
        layer.base_layer = FourBitLinear(layer.base_layer, device)
