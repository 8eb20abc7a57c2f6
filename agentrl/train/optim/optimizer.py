"""Optimizers on float32 masters, for parameters that live in bfloat16 and are the engine's too.

The parameters of the model are what the sampler reads: they are never copied and never change
between `step` calls. Beside each stands a float32 master that torch works on, and a float32 sum of
gradients that a hook fills as soon as autograd has a gradient, after which the bfloat16 one is
freed. A parameter that is float32 or wider is its own master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.errors import RunError, some_of
from agentrl.train.optim.gradient_sums import GradientSums, is_wide
from agentrl.train.saving.stored_tensors import shape_of

EPS = 1e-8
"""Added to the root of AdamW's second moment."""
ADAMW_MOMENTS = frozenset({"step", "exp_avg", "exp_avg_sq"})
"""State of torch's AdamW for each parameter."""


class MasterAdamW:
    """AdamW (https://arxiv.org/abs/1711.05101) by torch, with masters and gradient sums.

    Weight decay touches matrices only: not biases, not norms. Tied weights are one parameter.
    """

    def __init__(
        self, model: nn.Module, *, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._masters = {name: _master(param) for name, param in self._params.items()}
        self.sums = GradientSums(self._params)
        """Gradients of the update at hand."""
        self._optimizers = self._make_optimizers(model, betas=betas, weight_decay=weight_decay)

    def _make_optimizers(
        self, model: nn.Module, *, betas: tuple[float, float], weight_decay: float
    ) -> list[torch.optim.Optimizer]:
        """Torch's optimizers; each master belongs to exactly one."""
        return [adamw(self._masters.values(), betas=betas, weight_decay=weight_decay)]

    def clear(self) -> None:
        """Forget all gradients; the next backward pass starts a new sum."""
        self.sums.clear()
        for master in self._masters.values():
            master.grad = None

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Name and summed gradient of every parameter that has one."""
        return iter(self.sums)

    @property
    def names(self) -> tuple[str, ...]:
        """All trained parameters, in the order of the model."""
        return tuple(self._params)

    def gradient_or_zeros(self, name: str) -> Tensor:
        """The summed gradient of a parameter; from now on it has one, of zeros if it had none."""
        return self.sums.sum_or_zeros(name)

    def grad_norm(self) -> float:
        """Euclidean norm of all summed gradients together; infinite or NaN if one of them is."""
        grads = [grad for _, grad in self.gradients()]
        return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0

    def step(self, *, learning_rate: float, max_grad_norm: float, grad_norm: float) -> None:
        """Clip to the global norm, update the masters, write them into the parameters."""
        for name, grad in self.gradients():
            self._masters[name].grad = grad
        torch.nn.utils.clip_grads_with_norm_(
            list(self._masters.values()), max_grad_norm, torch.tensor(grad_norm)
        )
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()
        self.clear()
        self._publish()

    @torch.no_grad()
    def _publish(self) -> None:
        pairs = [
            (param, self._masters[name])
            for name, param in self._params.items()
            if self._masters[name] is not param
        ]
        if pairs:
            torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                [param for param, _ in pairs], [master for _, master in pairs]
            )

    def state_dict(self) -> dict[str, Any]:
        """Masters and moments by parameter name; plain tensors and numbers only."""
        states = self._states()
        moments: dict[str, dict[str, Any]] = {}
        for name, master in self._masters.items():
            moments[name] = dict(states[name].get(master, {}))
        return {"masters": {n: m.detach() for n, m in self._masters.items()}, "moments": moments}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, and write the masters into the parameters.

        Raises:
            RunError: the state belongs to a model with other parameters, or to another optimizer.
        """
        masters: dict[str, Tensor] = state["masters"]
        check_same_parameters(self._masters, masters)
        check_same_kind(state["moments"], self._moment_keys)
        states = self._states()
        self.clear()
        for name, master in self._masters.items():
            master.copy_(masters[name])
            moments = state["moments"][name]
            if moments:
                states[name][master] = self._loaded(name, moments)
            else:
                states[name].pop(master, None)
        self._publish()

    def _loaded(self, name: str, moments: Mapping[str, Tensor]) -> dict[str, Any]:
        """The state of one master from its saved moments."""
        master = self._masters[name]
        return {
            # A copy: what is loaded may be a file mapped into memory. The fused kernels want their
            # step count beside the parameter, wherever the state was saved.
            key: value.clone().to(_place(key, value, master))
            for key, value in moments.items()
        }

    def own_tensors(self) -> Iterator[Tensor]:
        """Masters that are not the parameters themselves, and all moments."""
        for name, master in self._masters.items():
            if master is not self._params[name]:
                yield master
        for optimizer in self._optimizers:
            for moments in optimizer.state.values():
                yield from (value for value in moments.values() if isinstance(value, Tensor))

    def _states(self) -> dict[str, Any]:
        """By parameter name, the state of the optimizer that has it."""
        owner = {
            id(master): optimizer.state
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for master in group["params"]
        }
        return {name: owner[id(master)] for name, master in self._masters.items()}

    def _moment_keys(self, name: str) -> frozenset[str]:
        """What the optimizer of this parameter keeps once it has moved it."""
        return ADAMW_MOMENTS


def adamw(
    masters: Iterable[Tensor], *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """Torch's fused AdamW; decay on what has two axes or more."""
    every = list(masters)
    groups = adamw_groups(every, weight_decay=weight_decay)
    return torch.optim.AdamW(groups, **adamw_settings(every, betas=betas))


def adamw_groups(masters: Sequence[Tensor], *, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for AdamW, none of them empty: decay on what has two axes or more."""
    matrices = [master for master in masters if master.ndim >= 2]
    vectors = [master for master in masters if master.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw_settings(masters: Sequence[Tensor], *, betas: tuple[float, float]) -> dict[str, Any]:
    """Arguments of torch's AdamW that all groups share; the learning rate comes with each step."""
    fused = all(_fusable(master) for master in masters)
    return {"lr": 0.0, "betas": betas, "eps": EPS, "fused": fused}


def _master(param: nn.Parameter) -> Tensor:
    if is_wide(param):
        return param
    return param.detach().to(torch.float32)


def _place(key: str, value: Tensor, master: Tensor) -> torch.device:
    return master.device if key != "step" or _fusable(master) else value.device


def _fusable(master: Tensor) -> bool:
    return master.device.type in ("cpu", "cuda")


def check_same_parameters(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Saved state belongs to this very model.

    Raises:
        RunError: other names, or other shapes.
    """
    missing, extra = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    if missing or extra:
        raise RunError(
            "the saved optimizer belongs to another model: it lacks "
            f"[{some_of(sorted(missing))}] and has [{some_of(sorted(extra))}] besides"
        )
    odd = [n for n in ours if ours[n].shape != shape_of(theirs, n)]
    if odd:
        got, expected = tuple(shape_of(theirs, odd[0])), tuple(ours[odd[0]].shape)
        raise RunError(
            f"the saved optimizer has another shape for {odd[0]}: {got}, the model has {expected} "
            f"({len(odd)} such parameters)"
        )


def check_same_kind(
    moments: Mapping[str, Mapping[str, Any]], wanted: Callable[[str], frozenset[str]]
) -> None:
    """Saved moments are those of the optimizer at hand.

    Args:
        moments: saved, by parameter name; empty for one that has not been moved.
        wanted: what the optimizer of a parameter keeps once it has moved it.

    Raises:
        RunError: those of another kind of optimizer.
    """
    for name, kept in moments.items():
        if kept and kept.keys() != wanted(name):
            raise RunError(
                f"the saved optimizer keeps {', '.join(sorted(kept))} for {name}, the one of "
                f"this run {', '.join(sorted(wanted(name)))}: train.optimizer was another; put it "
                "back, or begin a new run from the checkpoint as model.path"
            )
