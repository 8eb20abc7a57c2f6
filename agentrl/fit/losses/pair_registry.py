"""Pair losses by name; built-in ones are registered exactly as a user's are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.errors import TrainError
from agentrl.fit.losses import pair_losses
from agentrl.fit.losses.pair_losses import PairInputs
from agentrl.plugins.imports import require_callable
from agentrl.plugins.registry import Registry

PairLoss = Callable[[PairInputs], Tensor]
"""The pairs of a micro-batch to one loss for each, [P], not divided by anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLossSpec:
    """A pair loss and what it declares; see `pair_loss`."""

    name: str
    """Name in the config."""
    function: PairLoss
    """The loss."""
    needs_reference: bool = True
    """Whether it looks at log-probabilities of a reference."""


def _entry(name: str, value: Any) -> PairLossSpec:
    """A decorated function keeps what it declares; another gets the defaults."""
    function = require_callable(name, value)
    return PAIR_LOSSES.made_of(function) or PairLossSpec(name=name, function=function)


PAIR_LOSSES = Registry[PairLossSpec](
    "objective.loss", own="a pair loss of your own", entry=_entry, words=("kto",)
)


def pair_loss(name: str, *, needs_reference: bool = True) -> Callable[[PairLoss], PairLoss]:
    """Register a pair loss under a name, with what it needs.

    Args:
        name: for `objective.loss`. An import string (`package.module:function`) in the config
            imports the module by itself; a name needs another import of it.
        needs_reference: it looks at `ref_chosen_P` and `ref_rejected_P`, directly or through
            `h_P`. Without it no reference is computed, and metrics compare mean log-probabilities
            a token.

    Raises:
        ConfigError: another function has the name.

    Example:
        >>> @pair_loss("exponential")
        ... def exponential(inputs: PairInputs) -> Tensor:
        ...     return (-inputs.objective.beta * inputs.h_P).exp()
    """

    def register(function: PairLoss) -> PairLoss:
        spec = PairLossSpec(name=name, function=function, needs_reference=needs_reference)
        PAIR_LOSSES.add(name, spec, source=function)
        return function

    return register


def find_pair_loss(name: str, base: Path | None = None) -> PairLossSpec:
    """The pair loss that a config names.

    Args:
        name: registered, or an import string; a function without the decorator gets its defaults.
        base: folder that relative file paths start from; needed at the first time only.

    Raises:
        ConfigError: there is no such loss; lists those there are.
    """
    return PAIR_LOSSES.find(name, base=base)


def pair_losses_of(spec: PairLossSpec, inputs: PairInputs) -> Tensor:
    """Call a pair loss and refuse a result that cannot be summed over pairs.

    Returns:
        [P] the loss of each pair.

    Raises:
        TrainError: the loss raised, or returned anything but one number with a gradient for each
            pair.
    """
    what = f"pair loss {spec.name!r}"
    try:
        found: object = spec.function(inputs)
    except TrainError:
        raise
    except Exception as error:  # a loss may be a user's; this is the boundary
        raise TrainError(f"{what} raised {type(error).__name__}: {error}") from error
    expected = (
        f"expected a tensor of floats with one loss for each of the {len(inputs.chosen_P)} "
        "pairs; the framework weighs and averages"
    )
    if not isinstance(found, Tensor):
        raise TrainError(f"{what} returned {type(found).__name__}, {expected}")
    if found.shape != inputs.chosen_P.shape:
        raise TrainError(f"{what} returned shape {list(found.shape)}, {expected}")
    if not found.is_floating_point():
        raise TrainError(f"{what} returned {found.dtype}, {expected}")
    trained = inputs.chosen_P.requires_grad and torch.is_grad_enabled()
    if trained and not found.requires_grad:
        raise TrainError(
            f"{what} returned losses without a gradient; compute them from inputs.chosen_P and "
            "inputs.rejected_P, without detach() or numpy"
        )
    return found


pair_loss("sigmoid")(pair_losses.sigmoid)
pair_loss("robust")(pair_losses.robust)
pair_loss("ipo")(pair_losses.ipo)
pair_loss("hinge")(pair_losses.hinge)
pair_loss("simpo", needs_reference=False)(pair_losses.simpo)
pair_loss("orpo", needs_reference=False)(pair_losses.orpo)
