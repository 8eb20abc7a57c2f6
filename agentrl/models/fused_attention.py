"""Attention on a GPU, for engine and trainer: kernels it may choose, and scores that need none."""

from __future__ import annotations

import torch
from torch import Tensor

from agentrl.models.attention_layers import ScoreChanges


def without_plans(device: torch.device) -> None:
    """Keep `scaled_dot_product_attention` from kernels of cuDNN in this process.

    cuDNN makes a plan for each shape that it has not seen, and here every turn and every row has a
    length of its own: on an H200 each new length took 70 ms, against 10 ms for the whole decoding
    step of a model of 135 M weights. The other kernels take every length as it comes.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def formed_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, changes: ScoreChanges
) -> Tensor:
    """[1, H, L, D] with all scores formed, in float32 at least; no fused kernel has the changes.

    Args:
        query: [1, H, L, D].
        key: [1, H, T, D].
        value: [1, H, T, D].
        mask: [L, T] True where a query sees a key.
        scale: factor on the scores.
        changes: soft cap and sinks.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(2, 3)
    if changes.softcap is not None:
        scores = changes.softcap * torch.tanh(scores / changes.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if changes.sinks is not None:
        sinks = changes.sinks.to(wide)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    probs = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return probs.to(value.dtype) @ value
