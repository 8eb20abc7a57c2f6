"""Detector over the part of the reward that a judge or a reward model gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, pstdev

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fall_of,
    fine,
    found,
    held_out,
    moved,
    rise_of,
    unknown,
)
from agentrl.health.levers import fit, policy
from agentrl.health.levers.policy import Config, value_of
from agentrl.health.measures.curves import Change, change
from agentrl.health.own_score import own_score
from agentrl.health.records import History, Lever, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status

_SECTION = re.compile(r"(reward\.(?:functions|models))\.([^.]+)\.(?:args\.model(?:\..*)?|path)")
"""Keys of a config that name a served model as a judge, or a reward model."""
_LEAST_STEPS = 20
_SOLVED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class _LikedPart:
    name: str
    section: str
    """As `reward.functions.NAME`."""
    weight: float
    series: Series
    """Turned round where the weight is negative: up is what is paid for."""


@detector(
    bound("gain", 2.0, "rise of the part, in standard deviations between steps", OURS),
    bound("share", 0.25, "of that rise the environment's own score must be able to follow", OURS),
)
def judge_hacking(history: History, limits: Limits) -> Verdict:
    """A judge's or reward model's part of the reward rises, and the environment's own score does
    not: the policy has found what the model likes, and not what the task asks for.

    A part whose mean cannot move, as that of a ranking inside groups, is not seen here.
    """
    name = "judge_hacking"
    parts = list(_parts(history))
    if not parts:
        return unknown(name, "no judge and no reward model gives a part of the reward")
    own = own_score(history)
    if own is None:
        return unknown(name, "the environment has no score of its own to hold the judge against")
    fines: list[str] = []
    short: list[str] = []
    for part in parts:
        gain = change(part.series)
        if gain is None or len(part.series.values) < _LEAST_STEPS:
            steps = len(part.series.values)
            short.append(f"{part.name}: {steps} of the {_LEAST_STEPS} steps it needs")
            continue
        if not gain.up or gain.gain < limits["judge_hacking/gain"] * _noise(part.series):
            fines.append(f"{part.name} does not rise: {gain.text()}")
            continue
        verdict = _apart(history, part, gain, own, limits)
        if verdict is not None:
            return verdict
        fines.append(f"{part.name} {gain.text()}, and the score of the environment follows")
    if not fines:
        return unknown(name, "; ".join(short))
    return fine(name, "; ".join([*fines, *short]))


def _apart(
    history: History, part: _LikedPart, gain: Change, own: str, limits: Limits
) -> Verdict | None:
    # A reward model has any scale and a score that of 0 to 1, so a large rise asks for no more than
    # a tenth.
    pace = limits["judge_hacking/share"] * min(max(gain.gain, 0.08), 0.4)
    evaluations = held_out(history) if own == "score" else {}
    rises = {f"eval/{key}/score": (rise_of(history, key), key) for key in evaluations}
    known = {metric: rise for metric, (rise, _) in rises.items() if rise is not None}
    falling = {metric for metric, (_, key) in rises.items() if fall_of(history, key) is not None}
    sure = bool(known)
    if not known:
        series = history.metrics[own]
        training = change(series)
        if training is None or fmean(series.values[-5:]) >= _SOLVED:
            return None
        known = {own: training}
    for metric, rise in known.items():
        series = history.metrics[metric]
        falls = rise.down or metric in falling
        if series.values[-1] >= _SOLVED or (not falls and rise.high >= pace):
            continue
        return found(
            "judge_hacking",
            Status.FAIL if sure or falls else Status.WARN,
            f"{part.name} likes the policy more and more, and {metric} "
            f"{'falls' if falls else 'does not rise'}",
            moved(
                f"rewards/{part.name}/mean",
                part.series,
                gain,
                f"{part.name} {gain.text()}",
            ),
            moved(metric, series, rise, f"{metric} {rise.text()}"),
            levers=[
                *policy.lighter_part(history.config, part.section, part.weight),
                *_refreshed(history.config, part),
                *policy.stronger_kl(history.config),
                *policy.see_held_out(history.config),
            ],
        )
    return None


def _refreshed(config: Config, part: _LikedPart) -> list[Lever]:
    if not part.section.startswith("reward.models."):
        return []
    return fit.refreshed_model(config, part.name, judged=True)


def _parts(history: History) -> Iterator[_LikedPart]:
    sections = {
        (match[1], match[2]) for key in history.config if (match := _SECTION.fullmatch(key))
    }
    for kind, name in sorted(sections):
        series = history.metrics.get(f"rewards/{name}/mean")
        weight = _number(history.config, f"{kind}.{name}.weight", 1.0)
        if series is None or weight == 0:
            continue
        if weight < 0:
            series = Series(steps=series.steps, values=tuple(-value for value in series.values))
        yield _LikedPart(name=name, section=f"{kind}.{name}", weight=weight, series=series)


def _noise(series: Series) -> float:
    """Standard deviation between steps in the calmer end of the curve."""
    width = max(5, len(series.values) // 4)
    return min(pstdev(series.values[:width]), pstdev(series.values[-width:]))


def _number(config: Config, key: str, default: float) -> float:
    value = value_of(config, key, default)
    return float(value) if isinstance(value, (int, float)) else default
