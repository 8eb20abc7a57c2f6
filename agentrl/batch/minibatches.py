"""Which rollouts of a step are trained in one optimizer update.

Every rollout of the step has its place before any of them has ended: how they end decides what is
trained of a minibatch and never which one a rollout belongs to. So a minibatch can be trained as
soon as its own groups have ended, and its gradient is that of a step that waits for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentrl.config.algorithm import AlgorithmSection
from agentrl.types import Termination, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rollout of a step, by its position."""

    group: int
    """Position of its group among those of the step."""
    rollout: int
    """Position of the rollout in its group."""


def minibatch_places(
    sizes: Sequence[int], *, minibatches: int, seed: int, epoch: int
) -> list[list[Place]]:
    """Partition a step into `minibatches` parts of nearly equal numbers of rollouts.

    The groups come in an order drawn from (seed, epoch) and siblings stay neighbours, so a group
    is split only where the numbers do not divide. With fewer rollouts than parts some are empty.

    Args:
        sizes: rollouts of each group.
        minibatches: parts.
        seed: of the order; one part leaves the groups in theirs.
        epoch: likewise.

    Example:
        >>> parts = minibatch_places([2, 2, 2], minibatches=3, seed=0, epoch=0)
        >>> [{place.group for place in part} for part in parts]
        [{2}, {0}, {1}]
    """
    order: Sequence[int] = range(len(sizes))
    if minibatches > 1:
        order = [int(i) for i in np.random.default_rng([seed, epoch]).permutation(len(sizes))]
    queue = [Place(group=g, rollout=rollout) for g in order for rollout in range(sizes[g])]
    bounds = [len(queue) * part // minibatches for part in range(minibatches + 1)]
    return [queue[start:end] for start, end in pairwise(bounds)]


def started_rollouts(
    groups: Sequence[TrajectoryGroup], skip_groups: Mapping[str, str]
) -> list[list[str]]:
    """Ids of the rollouts that have a place, by group: also of those that failed.

    Groups that a filter dropped and rollouts that are too old have none, since others came for
    them.
    """
    return [
        [
            rows[0].rollout_id
            for rows in group.rollouts()
            if rows[-1].termination is not Termination.STALE
        ]
        for group in groups
        if group.group_id not in skip_groups
    ]


def why_not_early(algorithm: AlgorithmSection) -> str:
    """Why an update of this algorithm needs the whole step first; empty if it does not.

    Args:
        algorithm: resolved.
    """
    if algorithm.old_log_probs != "rollout":
        return (
            f"algorithm.old_log_probs is {algorithm.old_log_probs!r}: the policy before the step "
            "is asked about all of its rows before the first update moves it"
        )
    if algorithm.needs_values:
        return "the critic is asked about all rows of the step before its first update moves it"
    if algorithm.credit_needs_model:
        return "the KL penalty is taken off the rewards (algorithm.use_kl_loss is false)"
    if algorithm.distill is not None:
        return "the teacher (algorithm.distill) is asked about all rows of the step at once"
    if algorithm.whiten_advantages:
        return "algorithm.whiten_advantages takes mean and deviation over the whole step"
    return ""
