"""Weights that a backend has gathered, with the adapters among them merged.

`agentrl.train.model.lora` merges what the model itself holds; here the model holds parts, and what
counts is in the weights that were gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agentrl.train.model.lora import adapters


@torch.no_grad()
def merge_adapters(model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under their names in the model without adapters; as they are where it has none.

    Args:
        model: says which layers have an adapter; its own tensors are not read.
        weights: all of them by name, or none on a rank that got none.
    """
    known = {adapter.name: adapter for adapter in adapters(model)}
    merged: dict[str, Tensor] = {}
    for name, value in weights.items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        layer, inner, leaf = name.rpartition(".base_layer.")
        if not inner:
            merged[name] = value
            continue
        if leaf == "weight":
            down, up = (weights[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            kind = torch.promote_types(value.dtype, torch.float32)
            delta = up.to(kind) @ down.to(kind) * known[layer].scale
            delta = delta.T if known[layer].transposed else delta
            value = (value.to(kind) + delta).to(value.dtype)
        merged[f"{layer}.{leaf}"] = value
    return merged
