"""Pure parts of a refresh: how pairs are divided, and whether a new model is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.fit.data.preferences.from_runs import PairParts
from agentrl.fit.refresh.jobs import FitOutcome
from agentrl.fit.refresh.labels import PairLabels
from agentrl.types import PreferencePair

_EQUAL = 1e-12
"""Accuracies that differ by less are equal."""


def accepts(before: float, after: float, guard: float) -> bool:
    """Return true if a new model may be used.

    Args:
        before: accuracy of the present one on held-out pairs.
        after: accuracy of the new one on the same pairs.
        guard: largest fall that is accepted.

    Example:
        >>> accepts(0.70, 0.68, 0.02), accepts(0.70, 0.67, 0.02)
        (True, False)
    """
    return after >= before - guard - _EQUAL


def divided(
    pairs: Sequence[PreferencePair], parts: PairParts
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to train on and held-out ones; no task and no prompt is in both."""
    found: Mapping[bool | None, list[PreferencePair]] = {False: [], True: [], None: []}
    for pair in pairs:
        found[parts.is_held_out(pair)].append(pair)
    return found[False], found[True]


def measured_of(outcome: FitOutcome, *, held: int) -> dict[str, float]:
    """The `refresh/...` metrics of a fit, measured on so many held-out pairs."""
    return {
        "refresh/accuracy_before": outcome.before,
        "refresh/accuracy_after": outcome.after,
        "refresh/held_out_pairs": float(held),
        "refresh/old_pairs": float(outcome.old_pairs),
        "refresh/loss": outcome.loss,
        "refresh/temperature": outcome.temperature,
        "refresh/temperature_kept": float(outcome.temperature_kept),
    }


def why_no_pairs(labels: PairLabels, queue: Path) -> str:
    """The reason for which labelling gave no pair, in words."""
    if labels.failures:
        return f"the labeller failed for all {labels.failures} pairs: {labels.error}"
    if labels.waiting:
        return f"no pair of the queue has a new answer; {labels.waiting} wait in {queue}"
    if labels.ties:
        return f"all {labels.ties} pairs are ties"
    return "no two rollouts of one task can be compared"
