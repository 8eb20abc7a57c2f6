"""The bound on the age of a token when it is trained, and the rules that keep it. Pure: no clock.

Versions count optimizer steps. B groups make a step, weights are synced every K steps (`trigger`),
s is `staleness_threshold`. Three rules, the first two of which bound the lag of every token:

1. Back-pressure (FORMULAS F22). With `begun` and `trained` counted in groups, no group begins when

       begun - trained at the last sync >= (1 + s) * K * B

   The left side is queued + running + trained since the last sync. What was trained since the sync
   must be counted: with queued + running alone, slots that a step frees would be filled again with
   groups of the same old weights, and a sync interval could train any number of them.

2. Order. After a sync at learner version v, K*(a number) steps are trained, so the engine samples v
   and `trained at the last sync` is v*B. By rule 1 at most (v + (1+s)*K) * B groups have ever begun
   at version v or before. If every batch takes the groups that began first, those are all trained
   by step ceil(v + (1+s)*K), that is from weights of version ceil(v + (1+s)*K) - 1 at most, and

       lag = learner version - version of a token <= L := ceil((1 + s) * K) - 1

   Rollouts do not end in the order they began. `choose_batch` lets a short one overtake as long as
   every group that is left can still be trained within L (earliest deadline first); then it waits.
   A schedule always exists: there are never more deadlines <= m than slots up to version m.
   Example: s = 0, K = 1 gives L = 0, strictly on-policy; s = 1, K = 1 gives L = 1, one step off.
   A group that a filter drops and that another replaces releases its slot when it is taken: it is
   not among those of rule 1, so L stays what it is.

3. `max_version_lag` replaces rule 2 by enforcement: nothing waits for a long rollout, and tokens
   older than it are dropped with their rollout, or masked. A dropped group releases its slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from agentrl.config.fleet import ScheduleSection
from agentrl.metrics.bag import MetricBag
from agentrl.types import Termination, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A `schedule` section as the numbers a driver works with."""

    prompts_per_step: int
    """B: groups that one step trains."""
    trigger: int
    """K: steps between two syncs."""
    limit: int
    """Groups begun and not trained at the last sync from which on none begins."""
    lag_bound: int | None
    """L, kept by waiting; None when `max_version_lag` is enforced instead."""
    partial: bool
    """Whether weights are swapped under rollouts in flight."""

    @classmethod
    def of(cls, section: ScheduleSection, *, prompts_per_step: int) -> Pace:
        """The numbers of a section. One step off is the schedule with s = 1 and K = 1.

        Example:
            >>> Pace.of(ScheduleSection(staleness_threshold=0.5), prompts_per_step=4).limit
            6
        """
        staleness = section.staleness_threshold
        trigger = section.trigger_parameter_sync_step
        # Through the decimal text: 0.1 is one tenth, so that (1 + 0.1) * 10 is 11 and not above.
        ahead = (1 + Fraction(str(staleness))) * trigger
        return cls(
            prompts_per_step=prompts_per_step,
            trigger=trigger,
            limit=math.ceil(ahead * prompts_per_step),
            lag_bound=math.ceil(ahead) - 1 if section.lag_limit is None else None,
            partial=section.partial_rollout,
        )


class BackPressure:
    """Rule 1: counts groups, and decides whether another may begin."""

    def __init__(self, limit: int, *, total: int | None = None) -> None:
        """Start with no group begun.

        Args:
            limit: see `Pace.limit`.
            total: groups that are needed until the end; None for a run without one.
        """
        self._limit = limit
        self._total = total
        self._begun = 0
        self._trained = 0
        self._trained_at_sync = 0

    def allows(self) -> bool:
        """Return true if another group may begin."""
        needed = self._total is None or self._begun < self._total
        return needed and self._begun - self._trained_at_sync < self._limit

    def begin(self) -> None:
        """Count a group that begins."""
        assert self.allows(), "a group began against the back-pressure"
        self._begun += 1

    def train(self, groups: int) -> None:
        """Count groups as trained; their slots stay taken until the next sync."""
        self._trained += groups

    def drop(self, groups: int = 1) -> None:
        """Release the slots of groups that will not be trained."""
        self._begun -= groups

    def sync(self) -> None:
        """New groups sample from the learner's weights from now on."""
        self._trained_at_sync = self._trained


def choose_batch(
    finished: Sequence[int],
    running: Sequence[int],
    *,
    size: int,
    version: int,
    lag_bound: int | None,
    per_step: int | None = None,
) -> list[int] | None:
    """Rule 2: which finished groups to train next.

    Args:
        finished: engine version at which each finished group began, in the order they finished.
        running: the same of the groups in flight.
        size: groups to take.
        version: learner version the batch is trained from.
        lag_bound: L; None lets any group overtake any other.
        per_step: groups that a later step trains; None for `size`. Above it where `size` groups
            replace some of a step.

    Returns:
        Positions in `finished`, those that began first in front; None if it is better to wait.

    Example:
        >>> choose_batch([1, 0], [], size=1, version=1, lag_bound=1)
        [1]
        >>> choose_batch([1, 1], [0], size=1, version=1, lag_bound=1)  # None: the one of 0 is due
    """
    if len(finished) < size:
        return None
    order = sorted(range(len(finished)), key=finished.__getitem__)
    per_step = per_step or size
    if lag_bound is not None and running:  # with none in flight there is nothing to wait for
        left = sorted([*(finished[position] for position in order[size:]), *running])
        for position, began in enumerate(left):
            if began + lag_bound < version + 1 + position // per_step:
                return None
    return order[:size]


def oldest_allowed(section: ScheduleSection, version: int) -> int | None:
    """The oldest version that may be trained from `version`; None if there is no bound."""
    return None if section.lag_limit is None else version - section.lag_limit


def drop_stale(group: TrajectoryGroup, *, oldest_version: int, version: int) -> TrajectoryGroup:
    """The group with every rollout that holds an older token ended as `STALE`.

    Rollouts that are not trained on anyway keep what ended them. Idempotent, so that a replay from
    the store gives the same batch.
    """
    rows = []
    for members in group.rollouts():
        first = members[0]
        began = _oldest(members)
        if first.rule.in_loss and began is not None and began < oldest_version:
            detail = (
                f"sampled from version {began}, due for {version}; ended as {first.termination}"
            )
            members = tuple(
                replace(
                    row,
                    termination=Termination.STALE,
                    termination_detail=detail,
                    reward=None,
                    score=None,
                )
                for row in members
            )
        rows.extend(members)
    return replace(group, trajectories=tuple(rows))


def lag_metrics(tokens_by_version: Mapping[int, int], *, version: int) -> MetricBag:
    """Ages of the tokens of a step, each token counting once.

    Args:
        tokens_by_version: sampled tokens of the step by the weights that sampled them.
        version: learner version they are trained from.
    """
    bag = MetricBag()
    lags = {version - sampled: count for sampled, count in tokens_by_version.items() if count}
    total = sum(lags.values())
    if not total:
        return bag
    bag.mean("staleness/lag_mean", sum(lag * n for lag, n in lags.items()), count=total)
    bag.max("staleness/lag_max", max(lags))
    below = 0
    for lag in sorted(lags):
        below += lags[lag]
        if below >= 0.95 * total:
            bag.max("staleness/lag_p95", lag)
            break
    for lag in sorted(lags):
        bag.mean(f"staleness/share_lag_{lag}", lags[lag], count=total)
    return bag


def _oldest(rows: Sequence[Trajectory]) -> int | None:
    return min((version for row in rows for version in row.tokens_by_version), default=None)
