"""Proofs on an advantage estimator: what its advantages must not depend on.

Micro-batches and ranks are not tried here: an estimator sees whole groups before the work is
divided, and the gradient checks divide it in every way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from agentrl.batch import StepSettings, build_step
from agentrl.batch.advantages import estimate, group_rewards
from agentrl.batch.records import FloatArray
from agentrl.config.presets import Bounds
from agentrl.config.schema import AlgorithmSection
from agentrl.errors import DataError
from agentrl.estimators import EstimatorSpec, GroupRewards
from agentrl.train.prove.compare import ProofFinding, failed
from agentrl.train.prove.precision import tolerance_of
from agentrl.train.prove.rollouts import shuffled
from agentrl.types import TrajectoryGroup
from agentrl.types.finding import Status

_SIZES = (2, 3, 5, 8)


def estimator_checks(
    spec: EstimatorSpec,
    groups: Sequence[TrajectoryGroup],
    *,
    algorithm: AlgorithmSection,
    clip_shaped: Bounds | None,
    seed: int,
) -> list[ProofFinding]:
    """All checks of one estimator; only the first one where it does not run.

    Args:
        spec: the estimator.
        groups: rollouts of a step, one of them with a reward that cannot be trusted.
        algorithm: resolved; names the estimator.
        clip_shaped: `reward.clip_shaped`.
        seed: of the rewards.
    """
    rng = random.Random(seed)
    by_turn = algorithm.turn_rewards == "return_to_go"
    made = [_random_rewards(rng, size, algorithm, by_turn=by_turn) for size in _SIZES]
    checks: list[ProofFinding] = []
    for name, check in _checks(spec, made, groups, algorithm, clip_shaped):
        try:
            detail = check()
        except DataError as error:
            detail = str(error)
        checks.append(failed(name, detail) if detail else ProofFinding(name=name, status=Status.OK))
        if checks[0].status is Status.FAIL:
            break
    return checks


def _checks(
    spec: EstimatorSpec,
    made: Sequence[GroupRewards],
    groups: Sequence[TrajectoryGroup],
    algorithm: AlgorithmSection,
    clip_shaped: Bounds | None,
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name of each check, and a function that returns what is wrong; empty if nothing is."""

    def advantages(step: Sequence[TrajectoryGroup]) -> dict[str, float]:
        settings = StepSettings(
            algorithm=algorithm, micro_batch_tokens=1 << 20, seed=0, clip_shaped=clip_shaped
        )
        return dict(build_step(step, settings).advantages)

    def other_groups() -> str:
        whole, other = advantages(groups), advantages(shuffled(groups, seed=3))
        return _difference(whole, other)

    def untrusted() -> str:
        kept = [
            replace(
                group,
                trajectories=tuple(row for row in group.trajectories if row.rule.reward_trusted),
            )
            for group in groups
        ]
        return _difference(advantages(groups), advantages(kept))

    yield "estimator runs", lambda: _first(_runs(spec, g) for g in made)
    yield "estimator, called again", lambda: _first(_same_again(spec, g) for g in made)
    yield "estimator, order of siblings", lambda: _first(_permuted(spec, g) for g in made)
    yield "estimator, siblings", lambda: _first(_alone(spec, g) for g in made)
    yield "estimator, single rollout", lambda: _first(_single(spec, g) for g in made)
    yield "estimator, equal rewards", lambda: _first(_equal(spec, g) for g in made)
    yield "estimator, direction", lambda: _first(_backwards(spec, g) for g in made)
    yield "estimator, order of groups", other_groups
    yield "estimator, untrusted rollouts", untrusted


def _random_rewards(
    rng: random.Random, size: int, algorithm: AlgorithmSection, *, by_turn: bool
) -> GroupRewards:
    turns = [rng.randint(1, 4) if by_turn else 1 for _ in range(size)]
    return group_rewards(
        [[rng.choice((0.0, 0.25, 1.0)) + rng.random() for _ in range(n)] for n in turns],
        turn_tokens=[[rng.randint(1, 5) for _ in range(n)] for n in turns],
        gamma=algorithm.gamma,
    )


def _runs(spec: EstimatorSpec, group: GroupRewards) -> str:
    """`estimate` itself refuses wrong shapes and numbers that are not finite."""
    estimate(spec, group)
    return ""


def _same_again(spec: EstimatorSpec, group: GroupRewards) -> str:
    first, again = estimate(spec, group), estimate(spec, group)
    same = all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    return "" if same else "the same group has other advantages in a second call: it keeps state"


def _permuted(spec: EstimatorSpec, group: GroupRewards) -> str:
    order = list(reversed(range(len(group.to_go))))
    found = estimate(spec, _picked(group, order))
    back = [found[order.index(index)] for index in range(len(order))]
    return _apart(estimate(spec, group), back, "depends on the order of the siblings")


def _alone(spec: EstimatorSpec, group: GroupRewards) -> str:
    """A sibling's reward may matter only where that is declared."""
    if spec.compares_siblings:
        return ""
    lone = [estimate(spec, _picked(group, [index]))[0] for index in range(len(group.to_go))]
    return _apart(
        estimate(spec, group), lone, "depends on siblings: declare compares_siblings=True"
    )


def _single(spec: EstimatorSpec, group: GroupRewards) -> str:
    (found,) = estimate(spec, _picked(group, [0]))
    wrong = spec.compares_siblings and bool(found.any())
    return "a rollout without siblings has an advantage" if wrong else ""


def _equal(spec: EstimatorSpec, group: GroupRewards) -> str:
    """Equal rewards must not become NaN; an estimator may or may not make 0 of them."""
    estimate(spec, _picked(group, [0] * 4))
    return ""


def _backwards(spec: EstimatorSpec, group: GroupRewards) -> str:
    """The best of a group may not be worth less than the worst; equal is allowed."""
    found = estimate(spec, group)
    worst, best = (pick(range(len(found)), key=group.rewards.__getitem__) for pick in (min, max))
    low, high = (float(found[index][0]) for index in (worst, best))
    if high >= low - _tolerance(found) * max(abs(low), abs(high)):
        return ""
    return (
        f"the best of {len(found)} rollouts has less advantage than the worst: {high!r} with "
        f"reward {group.rewards[best]!r}, {low!r} with reward {group.rewards[worst]!r}"
    )


def _tolerance(found: Sequence[FloatArray]) -> float:
    """That of float32 if every advantage is one: rewards are drawn, so float64 hardly gives one."""
    exact = all(np.array_equal(a, a.astype(np.float32)) for a in found)
    return tolerance_of(torch.float32 if exact else torch.float64)


def _picked(group: GroupRewards, order: Sequence[int]) -> GroupRewards:
    return replace(
        group,
        turn_rewards=tuple(group.turn_rewards[index] for index in order),
        to_go=tuple(group.to_go[index] for index in order),
        turn_tokens=tuple(group.turn_tokens[index] for index in order),
    )


def _apart(wanted: Sequence[FloatArray], got: Sequence[FloatArray], what: str) -> str:
    largest = max((float(np.abs(a).max(initial=0.0)) for a in wanted), default=0.0)
    tolerance = _tolerance([*wanted, *got])
    for number, (a, b) in enumerate(zip(wanted, got, strict=True)):
        if not np.allclose(a, b, rtol=0.0, atol=tolerance * max(largest, 1e-12)):
            return f"{what}: rollout {number} has {b.tolist()} instead of {a.tolist()}"
    return ""


def _difference(whole: dict[str, float], other: dict[str, float]) -> str:
    tolerance = _tolerance([np.array([*whole.values(), *other.values()])])
    off = [
        name
        for name in whole.keys() | other.keys()
        if name not in whole
        or name not in other
        or not math.isclose(whole[name], other[name], rel_tol=tolerance, abs_tol=tolerance)
    ]
    if not off:
        return ""
    name = min(off)
    return (
        f"{len(off)} of {len(whole)} rollouts, as {name}: {other.get(name)} instead of "
        f"{whole.get(name)}"
    )


def _first(found: Iterator[str]) -> str:
    return next(filter(None, found), "")
