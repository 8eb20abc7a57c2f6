"""Builders of verdicts and evidence, and questions that several detectors ask."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from agentrl.health.levers.policy import trains_on
from agentrl.health.measures.curves import (
    Change,
    Stretch,
    difference,
    end_steps,
    since,
    trend,
)
from agentrl.health.movement import movement
from agentrl.health.records import (
    Dating,
    Evidence,
    History,
    Lever,
    RolloutFacts,
    Series,
    Verdict,
)
from agentrl.types.finding import Status

_IDS = 4
"""Rollouts named as evidence."""
_SOLVED = 0.95
"""A held-out score from which nothing is left to explore."""


def found(
    detector: str,
    status: Status,
    title: str,
    *evidence: Evidence,
    levers: Sequence[Lever] = (),
    explained_by: Sequence[str] = (),
) -> Verdict:
    """A verdict that spans the steps of its evidence; the first lever of a key wins.

    It begins where the first piece of evidence does that says since when; `diagnose` moves that to
    the change point of the curve.
    """
    dating = [item for item in evidence if item.dating is not Dating.NONE]
    firsts = [item.first_step for item in dating or evidence if item.first_step is not None]
    lasts = [item.last_step for item in evidence if item.last_step is not None]
    by_key: dict[str, Lever] = {}
    for lever in levers:
        by_key.setdefault(lever.key, lever)
    return Verdict(
        name=detector,
        status=status,
        detail=title,
        first_step=firsts[0] if firsts else None,
        last_step=max(lasts, default=None),
        evidence=evidence,
        levers=tuple(by_key.values()),
        explained_by=frozenset(explained_by),
    )


def fine(detector: str, title: str) -> Verdict:
    """Looked, and nothing is wrong."""
    return Verdict(name=detector, status=Status.OK, detail=title)


def unknown(detector: str, title: str) -> Verdict:
    """Not enough to judge by; `title` names what is missing."""
    return Verdict(name=detector, status=Status.UNKNOWN, detail=title)


def too_few(detector: str, what: str, series: Series | None, least: float) -> Verdict:
    """Not enough steps to judge by.

    Args:
        detector: its name.
        what: the metric in words, as in "the reward".
        series: of the metric; None if it is not logged.
        least: steps that the detector needs.
    """
    if series is None:
        return unknown(detector, f"{what} is not logged")
    return unknown(detector, f"{what} has {len(series.values)} of the {least:.0f} steps it needs")


def no_rise(what: str, series: Series, gain: Change | None) -> str:
    """Words for a curve that does not rise for certain, with the steps that are compared."""
    if gain is None:
        return f"{what} has too few steps to say whether it rises"
    start = f"{what} does not rise" if gain.gain <= 0 else f"the rise of {what} is not certain"
    return f"{start}: {gain.text()}, {compared_steps(series)}"


def compared_steps(series: Series) -> str:
    """The steps whose means a movement compares, as in `steps 1-2 against 9-10`."""
    first, last = end_steps(series)
    return f"steps {first[0]}-{first[1]} against {last[0]}-{last[1]}"


def seen(metric: str, stretch: Stretch, text: str) -> Evidence:
    """A stretch of a curve, in words."""
    return Evidence(
        text=text, metric=metric, first_step=stretch.first_step, last_step=stretch.last_step
    )


def moved(
    metric: str, series: Series, found: Change, text: str = "", *, dates: bool = True
) -> Evidence:
    """A curve from its start to its end.

    Args:
        metric: name of the curve.
        series: the curve.
        found: its movement.
        text: in place of the metric and its movement.
        dates: whether the finding began where this curve left its course.
    """
    return Evidence(
        text=text or f"{metric} {found.text()}",
        metric=metric,
        first_step=series.steps[0],
        last_step=series.steps[-1],
        dating=Dating.MOVEMENT if dates else Dating.NONE,
    )


def shown(
    facts: Sequence[RolloutFacts],
    text: str,
    *,
    since: int | None = None,
    sound_step: int | None = None,
) -> Evidence:
    """Rollouts that show it, the latest first.

    Args:
        facts: the rollouts.
        text: what they show.
        since: the step at which the finding began, if these say it; else they do not date it.
        sound_step: the last step looked at before it began.
    """
    latest = sorted(facts, key=lambda fact: -fact.step)[:_IDS]
    return Evidence(
        text=text,
        first_step=min((fact.step for fact in facts), default=None) if since is None else since,
        last_step=max((fact.step for fact in facts), default=None),
        rollout_ids=tuple(fact.rollout_id for fact in latest),
        dating=Dating.NONE if since is None else Dating.EXACT,
        sound_step=sound_step,
    )


def passed(series: Series, bound: float, *, up: bool) -> int:
    """The first step at which a curve is beyond a bound; its last where it never is."""
    beyond = (
        step
        for step, value in zip(series.steps, series.values, strict=True)
        if (value > bound) == up and value != bound
    )
    return next(beyond, series.steps[-1])


def over(stretch: Stretch, now: bool) -> str:
    """Words to add to a title about a stretch that is over."""
    return "" if now else f" (over since step {stretch.last_step})"


def trained(history: History) -> dict[int, list[RolloutFacts]]:
    """Sampled training rollouts by step, ascending."""
    by_step: dict[int, list[RolloutFacts]] = {}
    for fact in history.rollouts:
        if fact.kind == "train":
            by_step.setdefault(fact.step, []).append(fact)
    return dict(sorted(by_step.items()))


def ends(history: History, width: int = 3) -> tuple[list[RolloutFacts], list[RolloutFacts]]:
    """Training rollouts of the first and of the last `width` sampled steps; never the same ones."""
    steps = list(trained(history).values())
    width = min(width, len(steps) // 2)
    if not width:
        return [], []
    return (
        [fact for step in steps[:width] for fact in step],
        [fact for step in steps[-width:] for fact in step],
    )


def held_out(history: History) -> dict[str, Series]:
    """Scores of evaluations on tasks that are not trained on, by name."""
    scores: dict[str, Series] = {}
    for metric, series in history.metrics.items():
        if metric.startswith("eval/") and metric.endswith("/score"):
            name = metric.removeprefix("eval/").removesuffix("/score")
            if not trains_on(history.config, name):
                scores[name] = series
    return scores


def score_errors(history: History, name: str) -> list[float] | None:
    """Standard error of each score of an evaluation, from its 95 % interval; None if unknown."""
    series = history.metrics[f"eval/{name}/score"]
    low, high = (history.metrics.get(f"eval/{name}/score_{end}") for end in ("low", "high"))
    if low is None or high is None or not low.steps == high.steps == series.steps:
        return None
    # An end that stays within 0 and 1 is nearer than the other one; where all score the same, it
    # is the score itself.
    halves = [
        (b - a) / 2 if score in (a, b) else max(b - score, score - a)
        for a, score, b in zip(low.values, series.values, high.values, strict=True)
    ]
    # Where all tasks score the same, the interval is exact at one end and says too much.
    return [max(half / 1.96, 0.01) for half in halves]


def rise_of(history: History, name: str) -> Change | None:
    """Movement of the score of one evaluation: by its slope, or from first to last quarter.

    A curve that rises and then stays has little slope, and one that is noisy has a poor start; the
    larger rise of the two counts, so that the shape of a curve alone fails no check.
    """
    series, errors = history.metrics[f"eval/{name}/score"], score_errors(history, name)
    found = [trend(series, errors)]
    if errors is not None and len(errors) > 1:
        width = max(1, len(errors) // 4)
        start, (end, error) = series.values[0], _pooled(series.values[-width:], errors[-width:])
        half = 1.96 * math.hypot(errors[0], error)
        found.append(Change(start=start, end=end, low=end - start - half, high=end - start + half))
    return max((rise for rise in found if rise), key=lambda rise: rise.gain, default=None)


def fall_of(history: History, name: str) -> Change | None:
    """The fall of one evaluation, if its slope is downward for certain and it ends below its start.

    One first and one last evaluation are too few to be certain of a fall that all of them show.
    """
    slope = trend(history.metrics[f"eval/{name}/score"], score_errors(history, name))
    rise = rise_of(history, name)
    return slope if slope and slope.down and rise and rise.gain < 0 else None


def _pooled(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """Mean of several evaluations, and its standard error."""
    return sum(values) / len(values), math.sqrt(sum(e * e for e in errors)) / len(errors)


def lost_since_best(history: History, name: str) -> tuple[int, Change] | None:
    """The step of the best evaluation, and what was lost from it to the last, if for certain.

    The best of many is the luckiest of them, too: the interval is one of 99 % for all of them
    together (Bonferroni). Where there are enough, three in a row count as one, so that one unlucky
    evaluation at the end is no loss.
    """
    series, errors = history.metrics[f"eval/{name}/score"], score_errors(history, name)
    if errors is None:
        return None
    width = 3 if len(errors) >= 9 else 1
    parts = [
        _pooled(series.values[end - width : end], errors[end - width : end])
        for end in range(width, len(errors) + 1)
    ]
    best = max(range(len(parts)), key=lambda index: parts[index][0])
    (start, first), (end, last) = parts[best], parts[-1]
    gain = end - start
    half = NormalDist().inv_cdf(1 - 0.005 / len(parts)) * math.hypot(first, last)
    if gain + half >= 0:
        return None
    step = series.steps[best + width - 1]
    return step, Change(start=start, end=end, low=gain - half, high=gain + half)


def dated_by_best(evidence: Evidence, lost: tuple[int, Change] | None) -> Evidence:
    """Evidence of a score that falls, dated by its best evaluation if something was lost since."""
    if lost is None:
        return evidence
    return replace(evidence, first_step=lost[0], dating=Dating.EXACT)


def score_rise(history: History) -> Change | None:
    """Movement of the held-out score over the run: of the evaluation that rose most, if any."""
    rises = [rise for name in held_out(history) if (rise := rise_of(history, name)) is not None]
    return max(rises, key=lambda rise: rise.gain, default=None)


def score_rise_since(history: History, step: int) -> Change | None:
    """Movement of the held-out score since a step, from the last evaluation before it.

    Where there are too few evaluations since then, that of the whole run.
    """
    later: dict[str, Series] = {}
    for metric, series in history.metrics.items():
        if metric.startswith("eval/"):
            before = bisect_right(series.steps, step) - 1
            part = since(series, series.steps[max(0, before)])
            if len(part.steps) < 4:
                return score_rise(history)
            later[metric] = part
    return score_rise(replace(history, metrics={**history.metrics, **later}))


def solved(history: History) -> bool:
    """True if the held-out tasks are solved, so that there is nothing left to explore."""
    scores = held_out(history).values()
    return bool(scores) and all(series.values[-1] >= _SOLVED for series in scores)


def reward_change(history: History) -> Change | None:
    """Movement of the training reward from the first to the last quarter, 10 steps at most."""
    return movement(history, "reward")


def reward_range(history: History, series: Series) -> float:
    """Distance between the smallest and the largest reward of a rollout, as far as is known."""
    rewards = [
        fact.reward for fact in history.rollouts if fact.kind == "train" and fact.reward is not None
    ]
    if len(rewards) >= 8:
        return max(rewards) - min(rewards)
    return max(max(series.values) - min(series.values), 1.0 if max(series.values) <= 1 else 0.0)


def improving(history: History) -> bool:
    """True if the held-out score rises for certain, or, without one, the training reward does."""
    rise = score_rise(history)
    if rise is not None:
        return rise.up
    moved = reward_change(history)
    return moved is not None and moved.up


def stalled(history: History, step: int) -> bool:
    """True if the reward has not risen from before `step` to now, as far as is known."""
    series = history.metrics.get("reward")
    if series is None:
        return True
    before = [v for s, v in zip(series.steps, series.values, strict=True) if s < step][-10:]
    after = [v for s, v in zip(series.steps, series.values, strict=True) if s >= step][-10:]
    if len(before) < 2 or len(after) < 2:
        return False
    return not difference(before, after).up
