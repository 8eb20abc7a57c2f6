"""Advantage estimators by name; built-in ones are registered exactly as a user's are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from agentrl.estimators.contract import EstimatorFunction, EstimatorSpec, ValueFunction
from agentrl.plugins.imports import require_callable
from agentrl.plugins.registry import Registry


def _entry(name: str, value: Any) -> EstimatorSpec:
    """A decorated function keeps what it declares; another gets the defaults."""
    function = require_callable(name, value)
    return ESTIMATORS.made_of(function) or EstimatorSpec(name=name, function=function)


ESTIMATORS = Registry[EstimatorSpec](
    "algorithm.advantage_estimator", own="an estimator of your own", entry=_entry
)


def advantage_estimator(
    name: str,
    *,
    per: Literal["rollout", "turn", "token"] = "rollout",
    compares_siblings: bool = True,
    divides_by_spread: bool = False,
    discounts_tokens: bool = False,
    values_to_advantages: ValueFunction | None = None,
    formula: str = "",
) -> Callable[[EstimatorFunction], EstimatorFunction]:
    """Register an estimator under a name, with what it declares.

    Args:
        name: for `algorithm.advantage_estimator`. An import string (`package.module:function`) in
            the config imports the module by itself; a name needs another import.
        per: what it returns one number for: each `rollout`, `turn` or sampled `token`.
        compares_siblings: it needs groups of two and more. Where it is called with one rollout
            only, its advantage is 0.
        divides_by_spread: advantages have about the same size whatever the rewards' scale.
        discounts_tokens: `gamma` discounts a rollout's advantage by the trained tokens that follow.
        values_to_advantages: makes advantages of tokens from rewards and a critic's values; what
            the function returns is then credited as reward.
        formula: one line for `agentrl config`; may use `{ddof}` and `{eps}`.

    Raises:
        ConfigError: a name that another function has.

    Example:
        >>> @advantage_estimator("doctest_median", formula="R - median of the group")
        ... def median_baseline(group: GroupRewards) -> list[float]:
        ...     return [reward - statistics.median(group.rewards) for reward in group.rewards]
    """

    def register(function: EstimatorFunction) -> EstimatorFunction:
        spec = EstimatorSpec(
            name=name,
            function=function,
            per=per,
            compares_siblings=compares_siblings,
            divides_by_spread=divides_by_spread,
            discounts_tokens=discounts_tokens,
            values_to_advantages=values_to_advantages,
            formula=formula,
        )
        ESTIMATORS.add(name, spec, source=function)
        return function

    return register


def find_estimator(name: str | None, *, base: Path | None = None) -> EstimatorSpec:
    """The estimator that `algorithm.advantage_estimator` names.

    Args:
        name: registered, or an import string; a function without the decorator gets its defaults.
        base: folder that relative file paths start from; needed at the first time only.

    Raises:
        ConfigError: there is no such estimator; lists those there are.
    """
    return ESTIMATORS.find(name, base=base)
