"""Float32 sums of the gradients of a model whose parameters may be narrower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class GradientSums:
    """Gradients of several backward passes, summed in float32 at least.

    A hook moves the gradient of a narrow parameter into its sum as soon as autograd has it, and
    frees it. A parameter that is float32 or wider keeps its own, where autograd adds up.

    On a CPU all sums have their memory from the beginning. A gradient that autograd makes lies
    among the activations of its pass, and one that stayed there would leave holes between which
    the activations of the next pass find no room (`agentrl.machine.allocator`).
    """

    def __init__(self, params: Mapping[str, nn.Parameter]) -> None:
        """Register the hooks; `params` must not change their dtype afterwards."""
        self._params = dict(params)
        on_cpu = {n: p for n, p in self._params.items() if p.device.type == "cpu"}
        self._sums = {name: _sum_of(param) for name, param in on_cpu.items()}
        self._touched: set[str] = set()
        for name, param in self._params.items():
            if not is_wide(param):
                param.register_post_accumulate_grad_hook(self._hook(name))
            elif name in on_cpu:
                param.register_post_accumulate_grad_hook(self._mover(name))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Name and sum of every parameter that has a gradient, in the order of the model."""
        for name, param in self._params.items():
            if is_wide(param):
                if param.grad is not None:
                    yield name, param.grad
            elif name in self._touched:
                yield name, self._sums[name]

    def clear(self) -> None:
        """Forget all gradients; the next backward pass starts a new sum."""
        self._touched.clear()
        for param in self._params.values():
            param.grad = None

    def sum_or_zeros(self, name: str) -> Tensor:
        """The sum of a parameter; from now on it has one, of zeros if it had none."""
        param = self._params[name]
        if is_wide(param):
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            return param.grad
        if name not in self._touched:
            self._sums[name] = torch.zeros_like(param, dtype=torch.float32)
            self._touched.add(name)
        return self._sums[name]

    @torch.no_grad()
    def add(self, other: GradientSums) -> None:
        """Add the sums of the same parameters in another copy of the model, and clear them."""
        for name, found in other:
            param = self._params[name]
            if not is_wide(param):
                self._add(name, found)
            elif param.grad is None:
                param.grad = self._sum(name).copy_(found)
            else:
                param.grad.add_(found)
        other.clear()

    def held(self) -> Iterator[Tensor]:
        """Tensors of the gradient at hand; memory of earlier ones is freed."""
        self._sums = {name: kept for name, kept in self._sums.items() if name in self._touched}
        yield from self._sums.values()
        yield from (param.grad for param in self._params.values() if param.grad is not None)

    def _hook(self, name: str) -> Any:
        def move(param: Tensor) -> None:
            grad, param.grad = param.grad, None
            if grad is not None:
                self._add(name, grad)

        return move

    def _mover(self, name: str) -> Any:
        @torch.no_grad()
        def move(param: Tensor) -> None:
            own = self._sum(name)
            if param.grad is not None and param.grad.data_ptr() != own.data_ptr():
                param.grad = own.copy_(param.grad)

        return move

    def _add(self, name: str, grad: Tensor) -> None:
        if name in self._touched:
            self._sums[name].add_(grad)
        else:
            self._sum(name).copy_(grad)
            self._touched.add(name)

    def _sum(self, name: str) -> Tensor:
        """Memory of a sum, whatever is in it."""
        if name not in self._sums:
            self._sums[name] = _sum_of(self._params[name])
        return self._sums[name]


def _sum_of(param: Tensor) -> Tensor:
    kind = torch.promote_types(param.dtype, torch.float32)
    return torch.empty_like(param, dtype=kind, requires_grad=False)


def is_wide(param: Tensor) -> bool:
    """True where a parameter is precise enough to be its own master."""
    return param.dtype in (torch.float32, torch.float64)
