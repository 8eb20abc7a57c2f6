"""Names of what a rollout used, apart from the numbers of its environment."""

from __future__ import annotations

from agentrl.sandbox import Outcome
from agentrl.types.usage import OUTCOMES, usage_of, without_usage


def test_every_outcome_of_a_command_has_a_name() -> None:
    """Fails if a new outcome is taken for a number of the environment when it is read again."""
    assert {f"sandbox/outcome/{outcome}" for outcome in Outcome} == OUTCOMES


def test_numbers_are_told_apart_by_their_names() -> None:
    numbers = {"sandbox/opened": 1.0, "sandbox/mine": 2.0, "retried/tokens": 3.0, "tries": 4.0}
    assert usage_of(numbers) == {"sandbox/opened": 1.0, "retried/tokens": 3.0}
    assert without_usage(numbers) == {"sandbox/mine": 2.0, "tries": 4.0}
