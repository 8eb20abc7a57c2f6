"""Since when texts differ: rollouts are stored whole but read from a sample of the steps only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.health.findings import trained
from agentrl.health.measures.onset import onset
from agentrl.health.records import History, RolloutFacts

Measure = Callable[[Sequence[RolloutFacts]], float | None]
"""Of the rollouts of one step; None where they are too few or too short."""

_PART = 0.25
"""Of the way from the level at the start to that of now, above which a step has left the start."""
_CURVES = ("entropy", "kl", "completions/mean_length")
"""Curves of every step that move with the texts, the best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOnset:
    """Since when texts differ, as closely as the steps that were looked at tell it."""

    since: int | None = None
    """First step of it; None where no step could be measured."""
    sound_step: int | None = None
    """The last step looked at whose texts were as at the start; None where none was."""


def texts_since(history: History, measure: Measure, *, before: float, now: float) -> TextOnset:
    """The first step since which the texts have left the level of the first steps for good.

    Between the last sampled step that had not and the first that had, a curve which changes its
    course there says the step.

    Args:
        history: of the run.
        measure: what is compared; larger values are worse.
        before: its level in the first steps.
        now: its level in the latest ones.
    """
    bound = before + _PART * (now - before)
    first: int | None = None
    unlike = 0
    for step, facts in trained(history).items():
        value = measure(facts)
        if value is None:
            continue
        if value <= bound:
            first, unlike = None, step
        elif first is None:
            first = step
    sound = unlike or None
    if first is None or first - unlike <= 1:
        return TextOnset(since=first, sound_step=sound)
    for metric in _CURVES:
        series = history.metrics.get(metric)
        if series is None:
            continue
        for up in (True, False):
            began = onset(series, up=up, seen=first if first in series.steps else None)
            if began is not None and unlike < began <= first:
                return TextOnset(since=began, sound_step=sound)
    return TextOnset(since=first, sound_step=sound)
