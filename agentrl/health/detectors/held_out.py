"""Detector over the held-out score against the training reward."""

from __future__ import annotations

from bisect import bisect_right
from statistics import fmean

from agentrl.health.detector import detector
from agentrl.health.findings import (
    dated_by_best,
    fall_of,
    fine,
    found,
    held_out,
    lost_since_best,
    moved,
    no_rise,
    reward_change,
    reward_range,
    rise_of,
    score_errors,
    unknown,
)
from agentrl.health.levers import policy
from agentrl.health.measures.curves import (
    Change,
    change,
    number,
    since,
    weighted_slope,
)
from agentrl.health.movement import movement
from agentrl.health.records import History, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status

_REWARD = "reward"
_ENOUGH = 6
"""Evaluations that show how far a score follows."""


@detector(
    bound(
        "gain", 0.1, "rise of the training reward, as a share of its range, worth comparing", OURS
    ),
    bound("share", 0.25, "of that rise the held-out score must be able to follow", OURS),
    bound("drop", 0.1, "fall of the held-out score from its best evaluation", OURS),
    remembered=True,
)
def decoupling(history: History, limits: Limits) -> Verdict:
    """Training reward up, held-out score flat or down: the reward is hacked, or tasks are learned
    by heart. Judged by the 95 % interval of the slope of the held-out score."""
    name = "decoupling"
    reward = history.metrics.get(_REWARD)
    scores = held_out(history)
    if reward is None or not scores:
        return unknown(name, "no held-out evaluation; add one under eval.datasets")
    gain = reward_change(history)
    if gain is None or not gain.up:
        return fine(name, no_rise("the training reward", reward, gain))
    if gain.gain < limits["decoupling/gain"] * max(reward_range(history, reward), 1e-9):
        return fine(name, f"the training reward has hardly moved: {gain.text()}")
    judged: list[str] = []
    for metric in scores:
        rise = rise_of(history, metric)
        if rise is None:
            continue
        # First and last as everywhere; the rise is that of all evaluations between them, too.
        first, last = (number(scores[metric].values[end]) for end in (0, -1))
        ends = f"[{number(rise.low)}, {number(rise.high)}]"
        judged.append(f"{metric} {first} -> {last} (slope over all: {number(rise.gain)} {ends})")
        verdict = _apart(history, metric, gain, rise, limits)
        if verdict is not None:
            return verdict
    if not judged:
        return unknown(name, "fewer than 2 evaluations of the held-out tasks so far")
    return fine(name, f"training reward {gain.text()}, held out: {'; '.join(judged)}")


def _apart(
    history: History, name: str, gain: Change, rise: Change, limits: Limits
) -> Verdict | None:
    metric = f"eval/{name}/score"
    series = history.metrics[metric]
    # Rewards may be on any scale; scores are between 0 and 1, and so is the rise of the training
    # score, where the environment gives one.
    own = movement(history, "score")
    pace = limits["decoupling/share"] * max(own.gain if own is not None else 0.0, 0.08)
    lost, fall = lost_since_best(history, name), fall_of(history, name)
    dropped = lost is not None and -lost[1].gain > limits["decoupling/drop"]
    falls = rise.down or fall is not None or dropped
    follows = _follows(history, name)
    able = rise.high >= pace if follows is None else follows >= pace
    if not falls and able:
        return None
    shown = fall or rise
    if lost is not None and fall is None and not rise.down:
        since_best = change(since(history.metrics[_REWARD], lost[0]))
        if since_best is not None and since_best.down:
            return None  # both fall: that is not a reward that leaves the score behind
        shown = lost[1]
    return found(
        "decoupling",
        Status.FAIL,
        f"training reward rises and {name} {'falls' if falls else 'does not'}",
        moved(
            _REWARD,
            history.metrics[_REWARD],
            gain,
            f"training reward {gain.text()}",
            dates=not falls,
        ),
        dated_by_best(
            moved(
                metric,
                series,
                shown,
                f"{metric} {shown.text()}, {len(series.values)} evaluations, {_best_text(series)}",
            ),
            lost,
        ),
        levers=[
            *policy.stronger_kl(history.config),
            *policy.second_reward(history.config),
            *policy.see_held_out(history.config),
        ],
    )


def _best_text(series: Series) -> str:
    """The highest evaluation and its step: the weights to go back to, where they are kept."""
    best = max(range(len(series.values)), key=series.values.__getitem__)
    return f"the best {number(series.values[best])} after step {series.steps[best]}"


def _follows(history: History, name: str) -> float | None:
    """How far a held-out score may have followed the training score: an upper bound of its rise.

    Held against where the training score was at each evaluation, so that the shape of the two
    curves does not matter and every evaluation counts. None where there are too few of them, or the
    training score, which is on the same scale, is not known.
    """
    training, errors = history.metrics.get("score"), score_errors(history, name)
    scores = history.metrics[f"eval/{name}/score"]
    if training is None or errors is None or len(errors) < _ENOUGH or len(training.values) < 20:
        return None
    levels: list[float] = []
    for step in scores.steps:
        at = max(10, bisect_right(training.steps, step))
        levels.append(fmean(training.values[at - 10 : at]))
    line = weighted_slope(levels, scores.values, errors)
    own = movement(history, "score")
    if line is None or own is None or not own.up:
        return None
    slope, error = line
    return (slope + 1.96 * error) * own.gain
