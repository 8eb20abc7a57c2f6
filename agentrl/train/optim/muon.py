"""Muon for the matrices inside the layers, AdamW for everything else.

Muon (https://kellerjordan.github.io/posts/muon/) replaces the momentum of a matrix by a nearby
matrix whose singular values are all close to 1: five Newton-Schulz steps, in bfloat16. Embeddings,
the head, norms, biases and the stacked matrices of experts have no such meaning and stay with
AdamW, as the same text says.

The update of a matrix of A rows and B columns is scaled by 0.2 sqrt(max(A, B)), which gives it the
size of an AdamW update (https://arxiv.org/abs/2502.16982, section 2.2), so that one learning rate
and one weight decay serve both. Left out of that paper: its weight decay of 0.1, which is the
run's to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.train.optim.optimizer import MasterAdamW, adamw

MOMENTUM = 0.95
"""Momentum of Muon, with Nesterov's look ahead; the value of its authors."""
MUON_MOMENTS = frozenset({"momentum_buffer"})
"""State of torch's Muon for each matrix: half of AdamW's."""


class MasterMuon(MasterAdamW):
    """Masters, gradient sums and state as in `MasterAdamW`; matrices in layers move by Muon.

    The gradient of a step is exact under any partition, as for AdamW. Newton-Schulz runs in
    bfloat16, so gradients that differ in their last bits give updates that differ by about 1e-2 of
    their size; ranks hold the same bits and stay together.
    """

    def _make_optimizers(
        self, model: nn.Module, *, betas: tuple[float, float], weight_decay: float
    ) -> list[torch.optim.Optimizer]:
        self._in_layers = frozenset(checked_matrices(self._module(model)))
        matrices = [name for name in self._masters if name in self._in_layers]
        rest = [self._masters[name] for name in self._masters if name not in self._in_layers]
        mover = self._make_muon(matrices, weight_decay=weight_decay)
        if not rest:
            return [mover]
        return [mover, adamw(rest, betas=betas, weight_decay=weight_decay)]

    def _module(self, model: nn.Module) -> nn.Module:
        """The module whose structure decides which parameters are matrices in layers."""
        return model

    def _make_muon(self, names: Sequence[str], *, weight_decay: float) -> torch.optim.Optimizer:
        """Muon for the masters with these names."""
        masters = [self._masters[name] for name in names]
        return muon(masters, learning_rate=0.0, weight_decay=weight_decay)

    def _moment_keys(self, name: str) -> frozenset[str]:
        return MUON_MOMENTS if name in self._in_layers else super()._moment_keys(name)


def muon(
    masters: Sequence[Tensor],
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float = MOMENTUM,
) -> torch.optim.Optimizer:
    """Torch's Muon for whole matrices.

    Without momentum the gradient is what is orthogonalised.
    """
    return torch.optim.Muon(
        masters,
        lr=learning_rate,
        weight_decay=weight_decay,
        momentum=momentum,
        nesterov=momentum > 0.0,
        adjust_lr_fn="match_rms_adamw",
    )


def checked_matrices(model: nn.Module) -> list[str]:
    """The names of `layer_matrices`, for a run that is to move them by Muon.

    Raises:
        ConfigError: this torch has no Muon, or there is no such matrix.
    """
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"train.optimizer is 'muon', which torch has from 2.9 on; this is torch "
            f"{torch.__version__}: update it, or set train.optimizer: adamw"
        )
    found = list(layer_matrices(model))
    if not found:
        raise ConfigError(
            f"train.optimizer is 'muon', but {type(model).__name__} has no trained matrix "
            "inside a list of layers; set train.optimizer: adamw"
        )
    return found


def layer_matrices(model: nn.Module) -> Iterator[str]:
    """Names of the trained parameters with two axes that belong to a repeated layer.

    A layer is a member of an `nn.ModuleList`, which is how `transformers` writes every decoder.
    Tables that are looked up (`nn.Embedding`), also those that the head is tied to, are left out
    wherever they stand.
    """
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    tables: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            tables.add(id(module.weight))
    for name, param in model.named_parameters():
        inside = any(name.startswith(f"{layer}.") for layer in layers)
        if inside and _is_matrix(param) and id(param) not in tables:
            yield name


def _is_matrix(param: Tensor) -> bool:
    return param.requires_grad and param.ndim == 2
