"""The ways a rollout can end, for views: names, marks and words of the table of terminations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.types import TERMINATION_RULES, TerminationRule


def endings_answer(rules: Mapping[Any, TerminationRule] = TERMINATION_RULES) -> dict[str, Any]:
    """Traits and meaning of every ending by name, in the order of the table."""
    return {
        str(name): {"mark": rule.mark, "meaning": rule.meaning, **ending_traits(rule)}
        for name, rule in rules.items()
    }


def ending_name(name: str) -> str:
    """Name of an ending in sentences and on marks: one name over all views, as `max turns`."""
    return name.replace("_", " ")


def ending_traits(rule: TerminationRule) -> dict[str, bool]:
    """Traits of an ending that decide about the batch."""
    return {
        "reward_trusted": rule.reward_trusted,
        "in_baseline": rule.in_baseline,
        "in_loss": rule.in_loss,
        "truncated": rule.truncated,
    }
