"""Counts the groups that a step still lacks when the dynamic filter drops some."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.config.schema import RewardSection
from agentrl.metrics import MetricBag
from agentrl.reward import why_filtered
from agentrl.runtime.drivers.filters.token_ages import is_stale, is_too_old
from agentrl.runtime.stages import GroupReport


def missing_groups(groups: Iterable[GroupReport], section: RewardSection, *, wanted: int) -> int:
    """`wanted` less the groups that the filter keeps; 0 where nothing is filtered."""
    if section.dynamic_filtering is None:
        return 0
    kept = sum(not is_filtered(group, section) for group in groups)
    return max(0, wanted - kept)


def is_filtered(
    group: GroupReport, section: RewardSection, *, oldest_version: int | None = None
) -> bool:
    """The filter drops the group: the judgement of the learner, from the report.

    Args:
        group: that has ended.
        section: says which groups are kept.
        oldest_version: rollouts with a token of older weights are dropped before the filter looks;
            None drops none.
    """
    if section.dynamic_filtering is None:
        return False
    scores = [
        rollout.verdict
        for rollout in group.rollouts
        if rollout.rule.in_baseline
        and rollout.verdict is not None
        and not is_stale(rollout, oldest_version)
    ]
    return bool(why_filtered(scores, section.dynamic_filtering.keep))


class Refill:
    """Counts what a step of a run ahead still lacks, from the groups it has taken so far.

    Groups that age leaves nothing of are always replaced, those that the filter drops up to
    `reward.dynamic_filtering.rounds` times.
    """

    def __init__(self, section: RewardSection, *, oldest_version: int | None) -> None:
        """Begin a step.

        Args:
            section: says which groups are kept, and how often more are asked for.
            oldest_version: as in `is_filtered`.
        """
        self._section, self._oldest = section, oldest_version
        self._rounds, self._missing = 0, 0

    def replaced(self, taken: Iterable[GroupReport]) -> int:
        """Groups to take in place of some of these, which were taken last."""
        taken = list(taken)
        old = [is_too_old(group, self._oldest) for group in taken]
        filtered = sum(
            not too_old and is_filtered(group, self._section, oldest_version=self._oldest)
            for group, too_old in zip(taken, old, strict=True)
        )
        if filtered and self._rounds < most_rounds(self._section):
            self._rounds += 1
            return sum(old) + filtered
        self._missing += filtered
        return sum(old)

    def note(self, bag: MetricBag) -> None:
        """Note the rounds of the step, and the groups that it lacks all the same."""
        note_rounds(bag, self._section, rounds=self._rounds, missing=self._missing)


def most_rounds(section: RewardSection) -> int:
    """Times a step may ask for more tasks."""
    return 0 if section.dynamic_filtering is None else section.dynamic_filtering.rounds


def note_rounds(bag: MetricBag, section: RewardSection, *, rounds: int, missing: int) -> None:
    """Note the rounds of a step, and the groups that it lacks all the same."""
    if section.dynamic_filtering is not None:
        bag.sum("rollout/filter_rounds", rounds)
        bag.sum("rollout/groups_missing", missing)
