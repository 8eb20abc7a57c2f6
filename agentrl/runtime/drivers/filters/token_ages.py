"""Ages of the rollouts of a step, from their reports alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentrl.data.staleness import lag_metrics
from agentrl.metrics import MetricBag
from agentrl.runtime.stages import GroupReport, RolloutReport
from agentrl.types import Termination


def is_stale(rollout: RolloutReport, oldest_version: int | None) -> bool:
    """The rollout is dropped for its age, or was when it was stored; see `drop_stale`."""
    if rollout.termination is Termination.STALE:
        return True
    began = rollout.oldest_version
    return (
        rollout.rule.in_loss
        and oldest_version is not None
        and began is not None
        and began < oldest_version
    )


def is_too_old(group: GroupReport, oldest_version: int | None) -> bool:
    """Age leaves nothing of a group to train on, so that another must come for it."""
    stale = sum(is_stale(rollout, oldest_version) for rollout in group.rollouts)
    useful = sum(rollout.rule.in_loss for rollout in group.rollouts)
    return 0 < stale == useful


def age_metrics(
    groups: Sequence[GroupReport], *, version: int, oldest_version: int | None
) -> MetricBag:
    """Lags of all tokens of a step that is trained from `version`, and what age dropped."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    sampled: Counter[int] = Counter()
    for rollout in rollouts:
        sampled.update(rollout.tokens_by_version)
    bag = lag_metrics(sampled, version=version)
    stale = [rollout for rollout in rollouts if is_stale(rollout, oldest_version)]
    bag.sum("rollout/stale_dropped", len(stale))
    # Stored ones are counted as dropped already: they ended as STALE.
    bag.sum("rollout/dropped", sum(rollout.rule.in_loss for rollout in stale))
    return bag
