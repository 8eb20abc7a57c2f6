"""Policy losses by name; built-in ones are registered exactly as a user's are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.batch.records import MASK_KEYS, LossNeeds
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import ConfigError, choices
from agentrl.plugins.imports import require_callable
from agentrl.plugins.registry import Registry
from agentrl.train.losses.contract import LossFunction, LossSpec


def _entry(name: str, value: Any) -> LossSpec:
    """A decorated function keeps what it declares; another gets the defaults."""
    function = require_callable(name, value)
    return LOSSES.made_of(function) or LossSpec(name=name, function=function)


LOSSES = Registry[LossSpec]("algorithm.policy_loss", own="a loss of your own", entry=_entry)


def policy_loss(
    name: str,
    *,
    masks: tuple[str, ...] = ("response_mask",),
    zero_advantage_rows: bool = False,
    whole_rollouts: bool | Callable[[AlgorithmSection], bool] = False,
    correction: str = "none",
    apply_loss_scale: bool = True,
    reads: tuple[str, ...] | None = None,
    rollout_ratio: bool = False,
) -> Callable[[LossFunction], LossFunction]:
    """Register a loss under a name, with what it needs.

    Args:
        name: for `algorithm.policy_loss`. An import string (`package.module:function`) in
            the config imports the module by itself; a name needs another import of it.
        masks: keys of `MASK_KEYS` that it looks at. Their tokens get log-probabilities, and their
            global counts are in `LossInputs.counts`.
        zero_advantage_rows: its tokens have a gradient although their advantage is zero. Without
            it such rows are counted and not computed.
        whole_rollouts: it needs all rows of a rollout at once (`LossInputs.sequence_mean`); may
            depend on the algorithm.
        correction: which sampler correction multiplies it where the config names none.
        apply_loss_scale: False says that the scalar it returns is multiplied by
            `LossInputs.loss_scale` already, which undoes the averaging of the backend.
        reads: which of `OPTIONAL_KEYS` it reads; a dry run warns of those that are set in vain.
            None warns of none.
        rollout_ratio: its ratio is one of whole rollouts; a dry run warns of an aggregation mode
            that does not average per rollout.

    Raises:
        ConfigError: an unknown mask, or a name that another function has.

    Example:
        >>> @policy_loss("reinforce")
        ... def reinforce(inputs: LossInputs) -> TokenLosses:
        ...     return TokenLosses(loss_R=-inputs.advantages_R * inputs.log_probs_R)
    """
    if not masks:
        raise ConfigError(f"policy loss {name!r} declares no mask; valid: {sorted(MASK_KEYS)}")
    for key in masks:
        if key not in MASK_KEYS:
            raise ConfigError(f"policy loss {name!r}, masks: {choices(key, list(MASK_KEYS))}")

    def register(function: LossFunction) -> LossFunction:
        spec = LossSpec(
            name=name,
            function=function,
            masks=tuple(masks),
            zero_advantage_rows=zero_advantage_rows,
            whole_rollouts=whole_rollouts,
            correction=correction,
            apply_loss_scale=apply_loss_scale,
            reads=reads,
            rollout_ratio=rollout_ratio,
        )
        LOSSES.add(name, spec, source=function)
        return function

    return register


def find_loss(name: str | None, *, base: Path | None = None) -> LossSpec:
    """The loss that a config names.

    Args:
        name: registered, or an import string; a function without the decorator gets its defaults.
        base: folder that relative file paths start from; needed at the first time only.

    Raises:
        ConfigError: there is no such loss; lists those there are.
    """
    return LOSSES.find(name, base=base)


def needs_of(algorithm: AlgorithmSection, *, base: Path | None = None) -> LossNeeds:
    """Collect what the loss of an algorithm asks of the batch stage.

    Args:
        algorithm: resolved.
        base: folder that a relative file path in `policy_loss` starts from.

    Raises:
        ConfigError: there is no such loss.
    """
    spec = find_loss(algorithm.policy_loss, base=base)
    own = spec.zero_advantage_rows or algorithm.distill is not None
    kl = algorithm.needs_reference and bool(algorithm.use_kl_loss)
    penalty = kl or algorithm.entropy_coef > 0.0
    return LossNeeds(
        mask_keys=spec.masks,
        zero_advantage_rows=own or penalty,
        penalty_only=penalty and not own,
        whole_rollouts=wants_whole_rollouts(spec, algorithm),
    )


def wants_whole_rollouts(spec: LossSpec, algorithm: AlgorithmSection) -> bool:
    """Return true if the loss or its correction looks at whole rollouts."""
    own = spec.whole_rollouts
    return algorithm.is_correction_type == "seq-mask-tis" or (
        own(algorithm) if callable(own) else own
    )
