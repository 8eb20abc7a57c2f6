"""The contract of advantage estimators: one group in, one advantage per rollout, turn or token out.

    select     rewards that can be trusted -> GroupRewards -> function -> advantages
    credit     advantages -> trained tokens; with a critic `values_to_advantages` does that

Invariants: a function never sees a rollout whose reward cannot be trusted, nor another group, nor
how the work is divided among ranks. So advantages cannot depend on those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

STD_DDOF = 1
"""Delta degrees of freedom of the standard deviation of a group, as most trainers have it."""
STD_EPS = 1e-6
"""Added to that standard deviation, as in verl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRewards:
    """Rewards of one group's rollouts, as an estimator sees them.

    Rollouts whose reward cannot be trusted are left out. An estimator that compares siblings is
    never called with a single rollout: without a sibling its advantage is 0.

    Example:
        Two rollouts of two turns and of one, with `turn_rewards: return_to_go` and gamma 1.

        >>> group = GroupRewards(turn_rewards=((2.0, 1.0), (1.0,)), to_go=((3.0, 1.0), (1.0,)),
        ...                      turn_tokens=((5, 2), (7,)))
        >>> group.rewards
        (3.0, 1.0)
    """

    turn_rewards: tuple[tuple[float, ...], ...]
    """[G][K] Reward of each turn of each rollout. With `turn_rewards: sum` a rollout counts as one
    turn, which has all of its reward."""
    to_go: tuple[tuple[float, ...], ...]
    """[G][K] Reward of each turn and of those that follow it, discounted with `gamma` per turn."""
    turn_tokens: tuple[tuple[int, ...], ...]
    """[G][K] Sampled tokens of each turn."""
    gamma: float = 1.0
    """`algorithm.gamma`."""
    std_ddof: int = STD_DDOF
    """Delta degrees of freedom of a standard deviation."""
    std_eps: float = STD_EPS
    """What is added to a standard deviation."""

    @property
    def rewards(self) -> tuple[float, ...]:
        """[G] Whole reward of each rollout, with every penalty and reward function."""
        return tuple(turns[0] for turns in self.to_go)

    @property
    def num_tokens(self) -> tuple[int, ...]:
        """[G] Sampled tokens of each rollout."""
        return tuple(sum(turns) for turns in self.turn_tokens)


EstimatorFunction = Callable[[GroupRewards], Sequence[float] | Sequence[Sequence[float]]]
"""From a group to its advantages; `EstimatorSpec.per` names which shape they have."""

ValueFunction = Callable[..., Sequence[float]]
"""`(rewards, values, *, gamma, lam)` of one rollout's trained tokens to their advantages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """An advantage estimator and what it declares; see `advantage_estimator`.

    Example:
        >>> spec = EstimatorSpec(name="plain", function=lambda group: group.rewards)
        >>> spec.per, spec.compares_siblings, spec.needs_critic
        ('rollout', True, False)
    """

    name: str
    """Name in the config."""
    function: EstimatorFunction
    """The estimator."""
    per: Literal["rollout", "turn", "token"] = "rollout"
    """It returns one number per rollout [G], per turn [G][K] or per sampled token [G][A]."""
    compares_siblings: bool = True
    """Whether the reward of a rollout is compared with those of its group."""
    divides_by_spread: bool = False
    """Whether advantages are divided by the spread of the group's rewards."""
    discounts_tokens: bool = False
    """Whether `gamma` discounts by the trained tokens that follow."""
    values_to_advantages: ValueFunction | None = None
    """With a critic: advantages of tokens, from the rewards that `function` returns and the
    critic's values. None needs no critic."""
    formula: str = ""
    """What `agentrl config` prints; may use `{ddof}` and `{eps}`."""

    @property
    def needs_critic(self) -> bool:
        """True if a critic's values are part of the advantage."""
        return self.values_to_advantages is not None
