"""ZeRO 3 on a model in parts: every rank makes its part of each weight, and no weight is whole.

DeepSpeed's own way is to broadcast each whole weight from rank 0 and to keep a part of it. Written
against DeepSpeed 0.19.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from agentrl.models.parts import stored_weight
from agentrl.train.backends.filling import Filling


def divide(model: nn.Module, settings: dict[str, Any], filling: Filling, *, dtype: Any) -> None:
    """Divide a model among the ranks before DeepSpeed starts, one weight at a time.

    Args:
        model: in parts, in torch's global group.
        settings: of DeepSpeed.
        filling: reads the weights; the caller settles it.
        dtype: that DeepSpeed computes in.
    """
    from deepspeed.runtime.zero.partition_parameters import Init

    # Given a module, be it empty, it puts its own linear layer into torch, as at every start.
    zero = Init(module=nn.Module(), config_dict_or_path=settings, dtype=dtype)
    ranks, rank = zero.dp_world_size, zero.rank
    for param in model.parameters():
        if stored_weight(param) is None:
            # Adapters and heads: small, and drawn the same on every rank.
            if param.is_floating_point():
                param.data = param.data.to(dtype)
            zero._convert_to_zero_parameters([param])
            continue
        each = -(-param.numel() // ranks)
        filling.read(param, rank * each, (rank + 1) * each, dtype=dtype)
        zero._convert_to_deepspeed_param(param)
        with torch.no_grad():
            param.partition()  # pyright: ignore[reportAttributeAccessIssue]
