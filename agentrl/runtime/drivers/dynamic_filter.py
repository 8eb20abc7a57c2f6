"""Counts the groups that a step still lacks when the dynamic filter drops some."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.config.schema import RewardSection
from agentrl.metrics import MetricBag
from agentrl.runtime.stages import GroupReport


def missing_groups(groups: Iterable[GroupReport], section: RewardSection, *, wanted: int) -> int:
    """`wanted` less the groups that the filter keeps; 0 where nothing is filtered.

    The same judgement as that of the learner, from what the reports say.
    """
    from agentrl.reward import why_filtered

    if section.dynamic_filtering is None:
        return 0
    kept = 0
    for group in groups:
        scores = [r.verdict for r in group.rollouts if r.rule.in_baseline and r.verdict is not None]
        kept += not why_filtered(scores, section.dynamic_filtering.keep)
    return max(0, wanted - kept)


def most_rounds(section: RewardSection) -> int:
    """Times a step may ask for more tasks."""
    return 0 if section.dynamic_filtering is None else section.dynamic_filtering.rounds


def note_rounds(bag: MetricBag, section: RewardSection, *, rounds: int, missing: int) -> None:
    """Note the rounds of a step, and the groups that it lacks all the same."""
    if section.dynamic_filtering is not None:
        bag.sum("rollout/filter_rounds", rounds)
        bag.sum("rollout/groups_missing", missing)
