"""Policy losses by name. The built-in ones are made known in the very way that a user's are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from agentrl.batch.records import MASK_KEYS, LossNeeds
from agentrl.config.imports import resolve_callable
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import ConfigError, choices
from agentrl.train.losses.contract import LossFunction, LossSpec

_BY_NAME: dict[str, LossSpec] = {}
_BY_FUNCTION: dict[LossFunction, LossSpec] = {}
_BUILT_IN = "agentrl.train.losses.policy"


def policy_loss(
    name: str,
    *,
    masks: tuple[str, ...] = ("response_mask",),
    zero_advantage_rows: bool = False,
    whole_rollouts: bool | Callable[[AlgorithmSection], bool] = False,
    correction: str = "none",
    apply_loss_scale: bool = True,
) -> Callable[[LossFunction], LossFunction]:
    """Make a loss known under a name, with what it needs.

    Args:
        name: for `algorithm.policy_loss`. The module has to be imported by somebody; an import
            string (`package.module:function`) in the config does that by itself.
        masks: keys of `MASK_KEYS` that it looks at. Their tokens get log-probabilities, and their
            global counts are in `LossInputs.counts`.
        zero_advantage_rows: its tokens have a gradient although their advantage is zero. Without
            it such rows are counted and not computed.
        whole_rollouts: it needs all rows of a rollout at once (`LossInputs.sequence_mean`); may
            depend on the algorithm.
        correction: which sampler correction multiplies it where the config names none.
        apply_loss_scale: False says that the scalar it returns is multiplied by
            `LossInputs.loss_scale` already, which undoes the averaging of the backend (S3 6.3).

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
        have = _BY_NAME.get(name)
        if have is not None and _origin(have.function) != _origin(function):
            raise ConfigError(
                f"policy loss {name!r} is {_origin(have.function)} already; give "
                f"{_origin(function)} another name"
            )
        spec = LossSpec(
            name=name,
            function=function,
            masks=tuple(masks),
            zero_advantage_rows=zero_advantage_rows,
            whole_rollouts=whole_rollouts,
            correction=correction,
            apply_loss_scale=apply_loss_scale,
        )
        _BY_NAME[name] = _BY_FUNCTION[function] = spec
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
    importlib.import_module(_BUILT_IN)
    # A file path means another file from another folder.
    if name in _BY_NAME and not (base is not None and ":" in name):
        return _BY_NAME[name]
    if name is None or ":" not in name:
        raise ConfigError(
            f"algorithm.policy_loss: {choices(str(name), list(_BY_NAME))}; a loss of your own is "
            "named by an import string, package.module:function"
        )
    function = resolve_callable(name, base=base)
    spec = _BY_FUNCTION.get(function) or LossSpec(name=name, function=function)
    # Ranks and stages ask again without knowing where the config lies.
    _BY_NAME[name] = spec
    return spec


def needs_of(algorithm: AlgorithmSection, *, base: Path | None = None) -> LossNeeds:
    """What the loss of an algorithm asks of the batch stage.

    Args:
        algorithm: resolved.
        base: folder that a relative file path in `policy_loss` starts from.

    Raises:
        ConfigError: there is no such loss.
    """
    spec = find_loss(algorithm.policy_loss, base=base)
    penalty = algorithm.needs_reference and bool(algorithm.use_kl_loss)
    return LossNeeds(
        mask_keys=spec.masks,
        zero_advantage_rows=spec.zero_advantage_rows or penalty,
        whole_rollouts=wants_whole_rollouts(spec, algorithm),
    )


def wants_whole_rollouts(spec: LossSpec, algorithm: AlgorithmSection) -> bool:
    """Whether the loss or its correction looks at whole rollouts."""
    own = spec.whole_rollouts
    return algorithm.is_correction_type == "seq-mask-tis" or (
        own(algorithm) if callable(own) else own
    )


def _origin(function: LossFunction) -> str:
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', repr(function))}"
