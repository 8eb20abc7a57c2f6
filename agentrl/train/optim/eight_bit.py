"""AdamW whose moments are kept in 8 bits, by bitsandbytes (https://arxiv.org/abs/2110.02861).

Each block of 256 numbers has a scale of its own: 2.03 bytes a parameter for both moments in place
of 8. Tensors below 4096 numbers keep float32. Masters and gradient sums stay float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.models.bits import EIGHT_BITS, load_bitsandbytes
from agentrl.train.optim.optimizer import EPS, MasterAdamW, adamw_groups

_SMALL = 4096
_MOMENTS = frozenset({"step", "state1", "state2"})
_SCALES = frozenset({"absmax1", "absmax2"})


class MasterAdamW8bit(MasterAdamW):
    """Masters and gradient sums as in `MasterAdamW`; moments in 8 bits.

    The code books of the blocks are constants of bitsandbytes and in no checkpoint.
    """

    def _make_optimizers(
        self, model: nn.Module, *, betas: tuple[float, float], weight_decay: float
    ) -> list[torch.optim.Optimizer]:
        groups = adamw_groups(list(self._masters.values()), weight_decay=weight_decay)
        kind = load_bitsandbytes(EIGHT_BITS).optim.AdamW8bit
        return [kind(groups, lr=0.0, betas=betas, eps=EPS, min_8bit_size=_SMALL)]

    def state_dict(self) -> dict[str, Any]:
        """`state_dict` as in `MasterAdamW.state_dict`, with step counts as tensors."""
        state = super().state_dict()
        for name, kept in state["moments"].items():
            state["moments"][name] = {
                key: torch.tensor(float(value)) if key == "step" else value
                for key, value in kept.items()
                if key in _MOMENTS | _SCALES
            }
        return state

    def _loaded(self, name: str, moments: Mapping[str, Tensor]) -> dict[str, Any]:
        master, (optimizer,) = self._masters[name], self._optimizers
        for at, group in enumerate(optimizer.param_groups):
            for place, param in enumerate(group["params"]):
                if param is master:
                    optimizer.init_state(group, param, at, place)  # pyright: ignore
        state = optimizer.state[master]
        for key, value in moments.items():
            if key == "step":
                state[key] = int(value)
            else:
                state[key].copy_(value)
        return state

    def _moment_keys(self, name: str) -> frozenset[str]:
        return _MOMENTS if self._masters[name].numel() < _SMALL else _MOMENTS | _SCALES
