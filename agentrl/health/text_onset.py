"""Since when texts differ: rollouts are stored whole but read from a sample of the steps only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentrl.health.findings import trained
from agentrl.health.measures.curves import weighted_slope
from agentrl.health.measures.onset import onset
from agentrl.health.records import History, RolloutFacts

Measure = Callable[[Sequence[RolloutFacts]], float | None]
"""Of the rollouts of one step; None where they are too few or too short."""

_PART = 0.25
"""Of the way from the level at the start to that of now, above which a step has left the start."""
_FULL = 0.9
"""Of that way, from which a change is complete."""
_RAMP_LOOKS = 3
"""Steps looked at on the way that make a change a slow one."""
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
    levels: dict[int, float] = {}
    for step, facts in trained(history).items():
        value = measure(facts)
        if value is None:
            continue
        levels[step] = value
        if value <= bound:
            first, unlike = None, step
        elif first is None:
            first = step
    ramp = None if first is None else _ramp_begin(levels, first, before=before, now=now)
    if ramp is not None:
        return TextOnset(since=ramp, sound_step=max((s for s in levels if s < ramp), default=None))
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


def _ramp_begin(
    levels: Mapping[int, float], first: int, *, before: float, now: float
) -> int | None:
    """The step at which a slow change began: where the line through its looks meets the start.

    A slow change passes the bound long after it began. None where it came within few looks.

    Args:
        levels: of the steps looked at, ascending.
        first: the first of them that has left the start.
        before: level of the start.
        now: level of the end.
    """
    full = before + _FULL * (now - before)
    rising: list[int] = []
    for step in (step for step in levels if step >= first):
        rising.append(step)
        if levels[step] >= full:
            break
    if len(rising) < _RAMP_LOOKS:
        return None
    line = weighted_slope(rising, [levels[step] for step in rising], [1.0] * len(rising))
    if line is None or line[0] <= 0:
        return None
    middle, level = fmean(rising), fmean(levels[step] for step in rising)
    begin = middle - (level - before) / line[0]
    sound = max((step for step in levels if step < first), default=None)
    # A line that would have shown at the last sound look is not how it came.
    if sound is None or level + line[0] * (sound - middle) > before + _PART * (now - before):
        return None
    return max(1, round(begin)) if begin < first else None
