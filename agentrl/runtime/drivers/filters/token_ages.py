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
    useful = sum(
        rollout.rule.in_loss or rollout.termination is Termination.STALE
        for rollout in group.rollouts
    )
    return 0 < stale == useful


def age_metrics(
    groups: Sequence[GroupReport],
    *,
    version: int,
    oldest_version: int | None,
    oldest_token: int | None,
) -> MetricBag:
    """Lags of the tokens that a step trains from `version`, and what age dropped, by task.

    Args:
        groups: of the step, those that are only stored included.
        version: of the learner.
        oldest_version: rollouts with a token of older weights are dropped; None drops none.
        oldest_token: tokens of older weights are not trained, whatever becomes of their rollout.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    stale = [rollout for rollout in rollouts if is_stale(rollout, oldest_version)]
    sampled: Counter[int] = Counter()
    for rollout in rollouts:
        if rollout.rule.in_loss and not is_stale(rollout, oldest_version):
            sampled.update(rollout.tokens_by_version)
    if oldest_token is not None:
        sampled = Counter({v: count for v, count in sampled.items() if v >= oldest_token})
    bag = lag_metrics(sampled, version=version)
    bag.sum("rollout/stale_dropped", len(stale))
    # Stored ones are counted as dropped already: they ended as STALE.
    bag.sum("rollout/dropped", sum(rollout.rule.in_loss for rollout in stale))
    kept = {group.task_id for group in groups if not is_too_old(group, oldest_version)}
    lost = {group.task_id for group in groups if is_too_old(group, oldest_version)}
    bag.sum("staleness/tasks_dropped", len(lost - kept))
    return bag
