"""Block A: what an advantage estimator makes of one group's rewards, checked.

Which rollouts have a reward that can be trusted is decided before, by `TERMINATION_RULES`; which
token gets the result is decided after, by `credit`. The formulas are those of
`agentrl.estimators`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.batch.records import FloatArray
from agentrl.batch.returns import rewards_to_go
from agentrl.errors import AgentrlError, DataError
from agentrl.estimators import STD_DDOF, STD_EPS, EstimatorSpec, GroupRewards, find_estimator


def turn_advantages(
    rewards: Sequence[Sequence[float] | None],
    *,
    estimator: str,
    gamma: float,
    ddof: int,
    eps: float,
) -> list[FloatArray | None]:
    """One number per turn: return-to-go against the group's whole returns (FORMULAS C.14, F27).

    Args:
        rewards: [G][K] by rollout and turn; None is outside the baseline.
        estimator: as in `algorithm.advantage_estimator`.
        gamma: discount per turn.
        ddof: delta degrees of freedom of the standard deviation.
        eps: added to the standard deviation.

    Example:
        The second turn of the first rollout is worth 1 and not its whole 3; both are compared
        with the mean of whole returns, 2.

        >>> turn_advantages([[2.0, 1.0], [1.0]], estimator="dr_grpo", gamma=1.0, ddof=1, eps=1e-6)
        [array([ 1., -1.]), array([-1.])]

    Raises:
        DataError: a reward that is not finite, or an advantage that is not.
        ConfigError: an unknown estimator.
    """
    trusted = [turns for turns in rewards if turns is not None]
    group = group_rewards(
        trusted,
        turn_tokens=[[1] * len(turns) for turns in trusted],
        gamma=gamma,
        std_ddof=ddof,
        std_eps=eps,
    )
    found = iter(estimate(find_estimator(estimator), group))
    return [None if turns is None else next(found) for turns in rewards]


def group_rewards(
    rewards: Sequence[Sequence[float]],
    *,
    turn_tokens: Sequence[Sequence[int]],
    gamma: float,
    std_ddof: int = STD_DDOF,
    std_eps: float = STD_EPS,
) -> GroupRewards:
    """Put together what an estimator is given of one group.

    Args:
        rewards: [G][K] by trusted rollout and turn.
        turn_tokens: [G][K] sampled tokens.
        gamma: discount per turn.
        std_ddof: see `GroupRewards`.
        std_eps: see `GroupRewards`.

    Raises:
        DataError: a reward that is not finite.
    """
    bad = [reward for turns in rewards for reward in turns if not math.isfinite(reward)]
    if bad:
        raise DataError(f"rewards of a group must be finite, got {bad} among {list(rewards)}")
    return GroupRewards(
        turn_rewards=tuple(tuple(map(float, turns)) for turns in rewards),
        to_go=tuple(tuple(rewards_to_go(turns, gamma=gamma).tolist()) for turns in rewards),
        turn_tokens=tuple(map(tuple, turn_tokens)),
        gamma=gamma,
        std_ddof=std_ddof,
        std_eps=std_eps,
    )


def estimate(spec: EstimatorSpec, group: GroupRewards) -> list[FloatArray]:
    """The advantages of a group's rollouts: [K] by turn, or [A] by sampled token.

    A number per rollout is that of each of its turns. A single rollout has no sibling to be
    compared with, so its advantage is 0 where the estimator compares.

    Raises:
        DataError: the estimator raised, or returned the wrong number of advantages or one that is
            not finite.
    """
    sizes = group.num_tokens if spec.per == "token" else [len(t) for t in group.turn_rewards]
    if not sizes or (spec.compares_siblings and len(sizes) == 1):
        return [np.zeros(size, dtype=np.float64) for size in sizes]
    try:
        returned: Sequence[Any] = spec.function(group)
        found = [np.asarray(advantages, dtype=np.float64) for advantages in returned]
    except AgentrlError:
        raise
    except Exception as error:  # a user's estimator may raise anything; this is the boundary
        raise DataError(
            f"advantage estimator {spec.name!r} raised {type(error).__name__}: {error} for the "
            f"rewards {list(group.rewards)}"
        ) from error
    if len(found) != len(sizes):
        raise DataError(
            f"advantage estimator {spec.name!r} returned advantages of {len(found)} rollouts for a "
            f"group of {len(sizes)}; return one for each, in their order"
        )
    wanted = [() if spec.per == "rollout" else (size,) for size in sizes]
    for number, (advantages, shape) in enumerate(zip(found, wanted, strict=True)):
        if advantages.shape != shape:
            raise DataError(
                f"advantage estimator {spec.name!r} (per={spec.per!r}) returned an array of shape "
                f"{advantages.shape} for rollout {number} of a group of {len(sizes)}, expected "
                f"{shape}; declare another `per`, or return one number per {spec.per}"
            )
        if not np.isfinite(advantages).all():
            raise DataError(
                f"advantage estimator {spec.name!r} returned {advantages.tolist()} for rollout "
                f"{number} of a group with rewards {list(group.rewards)}, expected finite numbers"
            )
    if spec.per == "rollout":
        return [np.full(size, a, dtype=np.float64) for a, size in zip(found, sizes, strict=True)]
    return found
