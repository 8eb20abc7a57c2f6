"""Detectors over the reward: flat, spiking, falling."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, fmean

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fall_of,
    fine,
    found,
    held_out,
    moved,
    passed,
    reward_range,
    score_rise,
    seen,
    solved,
    too_few,
    unknown,
)
from agentrl.health.level import steps_text, sustained
from agentrl.health.levers import policy, system
from agentrl.health.measures.curves import (
    Change,
    change,
    current,
    difference,
    number,
    since,
    smoothed,
)
from agentrl.health.measures.onset import onset
from agentrl.health.measures.task_order import in_file_order, same_tasks, text_of
from agentrl.health.records import Dating, Evidence, History, Series, Verdict
from agentrl.health.thresholds import OURS, USUAL, Limits, bound
from agentrl.types.finding import Status

_REWARD = "reward"
_REMEMBERED = 10
"""Steps for which a fall is remembered."""
_LEAST_LEVEL = 0.1
"""Level, as a share of the range of rewards, below which a fall is held against this."""
_NOTHING = 0.1
"""Share of the best level that is left where the policy fell, however hard the tasks became."""
_KEPT = 0.8
"""Share of a held-out score that is left where it did not fall with the reward."""


@detector(
    bound("reward/zero", 0.01, "mean reward that counts as zero", OURS),
    bound("reward/zero_steps", 15, "steps at zero", OURS),
    bound("reward/flat_steps", 60, "steps without any measurable change of the reward", OURS),
    bound("reward/spike_steps", 20, "steps within which a climb is vertical", USUAL),
    bound("reward/spike_share", 0.5, "of the range of the reward, gained in one such climb", OURS),
    bound("reward/fall", 0.3, "fall from the best level as a share of it", OURS),
)
def reward_flat(history: History, limits: Limits) -> Verdict:
    """Reward that stays at zero or does not move: broken, or the task is impossible."""
    name = "reward_flat"
    series = history.metrics.get(_REWARD)
    steps = int(limits["reward/zero_steps"])
    if series is None or len(series.values) < steps:
        return too_few(name, "the reward", series, steps)
    zero = limits["reward/zero"]
    at_zero = sustained(history, _REWARD, lambda v: abs(v) <= zero, steps)
    if at_zero is not None and abs(fmean(series.values[-steps:])) <= zero:
        return found(
            name,
            Status.FAIL,
            "the reward is flat at zero: a broken reward, or tasks out of reach",
            seen(_REWARD, at_zero, f"reward within {number(zero)} of 0 for {steps_text(at_zero)}"),
            levers=system.difficulty(history.config, level=0.0),
            explained_by=_fell_from(history, at_zero.first_step),
        )
    recent = series.values[-steps:]
    least = 1e-6 * max(1.0, abs(recent[-1]))
    if max(recent) - min(recent) <= least and not solved(history):
        same = current(series, lambda v: abs(v - recent[-1]) <= least)
        return found(
            name,
            Status.FAIL if not _full_score(history) else Status.WARN,
            f"the reward is the same in every step: {number(recent[-1])}",
            Evidence(
                text=f"reward {number(recent[-1])} in each of the last {steps} steps",
                metric=_REWARD,
                first_step=same.first_step if same else series.steps[-steps],
                last_step=series.steps[-1],
                dating=Dating.EXACT,
            ),
            levers=system.difficulty(history.config),
        )
    return _no_move(history, series, limits)


def _no_move(history: History, series: Series, limits: Limits) -> Verdict:
    # Ten steps at the ends see a rise that is over soon, quarters see through noise.
    ends, whole = change(series), change(series, len(series.values) // 4)
    size = max(reward_range(history, series), 1e-9)
    still = (
        len(series.values) >= limits["reward/flat_steps"]
        and ends is not None
        and whole is not None
        and not (ends.up and ends.gain >= 0.1 * size)
        and not whole.up
        and not whole.down
        and abs(whole.gain) < 0.05 * size
    )
    if whole is None or not still or _full_score(history) or solved(history):
        return fine(
            "reward_flat", f"reward {number(series.values[0])} -> {number(series.values[-1])}"
        )
    rise = score_rise(history)
    if rise is not None and rise.up:
        return fine("reward_flat", "the reward is level and the held-out score rises")
    return found(
        "reward_flat",
        Status.WARN,
        f"the reward has not moved in {len(series.values)} steps",
        moved(_REWARD, series, whole),
        levers=[*policy.higher_rate(history.config), *system.difficulty(history.config)],
        explained_by=("reward_fall",),
    )


def _full_score(history: History) -> bool:
    scores = history.metrics.get("score")
    return scores is not None and fmean(scores.values[-5:]) >= 0.95


@detector()
def reward_spike(history: History, limits: Limits) -> Verdict:
    """A vertical climb in fewer than 20 steps, which the held-out score does not share."""
    name = "reward_spike"
    series = history.metrics.get(_REWARD)
    width = int(limits["reward/spike_steps"])
    if series is None or len(series.values) < 10:
        return too_few(name, "the reward", series, 10)
    calm = smoothed(series, 3)
    best: tuple[float, int, int] = (0.0, 0, 0)
    for end in range(1, len(calm.values)):
        begin = bisect_left(calm.steps, calm.steps[end] - width)
        lowest = min(range(begin, end + 1), key=lambda i: (calm.values[i], -i))
        best = max(best, (calm.values[end] - calm.values[lowest], -lowest, end))
    climb, begin, end = best[0], -best[1], best[2]
    if climb < limits["reward/spike_share"] * max(reward_range(history, series), 1e-9):
        within = min(width, series.steps[-1] - series.steps[0])
        return fine(name, f"the steepest climb within {within} steps is {number(climb)}")
    text = (
        f"reward {number(calm.values[begin])} -> {number(calm.values[end])} within steps "
        f"{calm.steps[begin]}-{calm.steps[end]}"
    )
    rise = score_rise(history)
    if rise is not None and rise.gain > 0 and not rise.down and rise.high > 0.25 * climb:
        return fine(name, f"{text}, and the held-out score moves along: {rise.text()}")
    if rise is None and not _level_before(series, calm.steps[begin], climb, 2 * width):
        # A toy task is learned that fast from the start, too; the two look the same.
        return fine(name, f"{text}; no held-out evaluation says whether it is real")
    held = f"held-out score {rise.text()}" if rise else "no held-out evaluation vouches for it"
    return found(
        name,
        Status.FAIL if rise and rise.high < 0.1 * climb else Status.WARN,
        f"the reward jumps and the held-out score does not: {text}"
        if rise
        else f"the reward jumps after a level stretch: {text}",
        Evidence(
            text=f"{text}; {held}",
            metric=_REWARD,
            first_step=calm.steps[begin],
            last_step=calm.steps[end],
            dating=Dating.EXACT,
        ),
        levers=[*policy.second_reward(history.config), *policy.stronger_kl(history.config)],
    )


def _level_before(series: Series, step: int, climb: float, least: int) -> bool:
    """Whether the reward stood still for at least so many logged steps before a climb.

    What is learned fast is learned from the start; a loophole is found after a while.
    """
    count = sum(at <= step for at in series.steps)
    if count < least:
        return False
    before = Series(steps=series.steps[:count], values=series.values[:count])
    moved = change(before, count // 2)
    return moved is not None and abs(moved.gain) < 0.1 * climb


@detector()
def reward_fall(history: History, limits: Limits) -> Verdict:
    """The reward has lost a good part of the best level it ever had, and not because the tasks of
    the latest steps are others."""
    name = "reward_fall"
    series = history.metrics.get(_REWARD)
    if series is None or len(series.values) < 10:
        return too_few(name, "the reward", series, 10)
    # The best of many short windows is the luckiest of them, so windows grow with the run.
    width = max(5, len(series.values) // 20)
    calm = smoothed(series, width)
    best = max(calm.values)
    peak = calm.steps[calm.values.index(best)]
    at = series.steps.index(peak) + 1
    best_steps = f"steps {series.steps[at - width]}-{peak}"
    if at > len(series.values) - 5:
        return fine(
            name, f"the best mean of {width} steps is a late one: {number(best)}, {best_steps}"
        )
    before = series.values[at - width : at]
    lost = difference(before, series.values[-5:])
    # Around 0 a share of the level is next to nothing.
    scale = max(abs(best), _LEAST_LEVEL * reward_range(history, series), 1e-3)
    least = limits["reward/fall"] * scale
    if not _fallen(series, at, before, max(least, _luck(series, width))):
        return fine(
            name,
            f"mean reward {number(lost.end)} in the last 5 steps, at best {number(best)} in "
            f"{best_steps}",
        )
    began = _fell(since(series, series.steps[at - width]), (best + lost.end) / 2)
    if (told := _other_tasks(history, peak, began, lost, least)) is not None:
        return told
    return found(
        name,
        Status.FAIL if -lost.gain >= 2 * limits["reward/fall"] * scale else Status.WARN,
        f"the reward fell from {number(best)} to {number(lost.end)}",
        Evidence(
            text=f"reward {lost.text()} since its best level at step {peak}",
            metric=_REWARD,
            first_step=began,
            last_step=series.steps[-1],
            dating=Dating.EXACT,
        ),
        levers=[*policy.lower_rate(history.config, 4), *policy.stronger_kl(history.config)],
        # The policy is as good as before: the training tasks are others.
        explained_by=("empty_gradient",) if _held_out_holds(history, began) else (),
    )


def _other_tasks(
    history: History, peak: int, began: int, lost: Change, least: float
) -> Verdict | None:
    """The verdict on a fall that which tasks came when explains, or may explain."""
    name, text = "reward_fall", f"reward {lost.text()}"
    same = same_tasks(history, peak)
    if same is not None:
        held = same[0] >= lost.start - least and same[0] - same[1] < least / 2
        return fine(name, f"{text}, but {text_of(same)}: other tasks are harder") if held else None
    if lost.end <= _NOTHING * lost.start or not in_file_order(history):
        return None
    if _held_out_holds(history, began):
        return fine(name, f"{text}, and held-out scores hold: the tasks of late are harder")
    if any(len(scores.values) > 1 for scores in held_out(history).values()):
        return None
    return unknown(
        name,
        f"{text}; tasks come in the order of the file, each once, and without a held-out "
        "evaluation harder tasks cannot be told from a worse policy",
    )


def _fallen(series: Series, at: int, before: Sequence[float], least: float) -> bool:
    """True if the reward has fallen by so much, and has not come back by half of it since.

    A fall that was certain once is not taken back because of one good step among the last five.
    """
    ends = range(max(at + 5, len(series.values) - _REMEMBERED), len(series.values) + 1)
    fallen = False
    for end in ends:
        lost = difference(before, series.values[end - 5 : end])
        fallen = (lost.down and -lost.gain >= least) or (fallen and -lost.gain >= least / 2)
    return fallen


def _luck(series: Series, width: int) -> float:
    """Fall from the luckiest of all windows to an unlucky end, where nothing falls (Bonferroni).

    The noise is that from one step to the next, which is the same while a level moves.
    """
    noise = math.sqrt(fmean((b - a) ** 2 for a, b in pairwise(series.values)) / 2)
    looks = len(series.values) / width * _REMEMBERED / 5
    return NormalDist().inv_cdf(1 - 0.003 / looks) * noise * math.sqrt(1 / width + 1 / 5)


def _fell_from(history: History, step: int) -> tuple[str, ...]:
    """Causes of a reward that is zero since a step: a fall, or other tasks where scores hold."""
    return ("reward_fall", "empty_gradient") if _held_out_holds(history, step) else ("reward_fall",)


def _held_out_holds(history: History, step: int) -> bool:
    """True if no held-out score fell with the reward, as far as there are some on both sides."""
    for name, series in held_out(history).items():
        at = bisect_left(series.steps, step)
        before, after = series.values[max(0, at - 3) : at], series.values[at + 1 :]
        if len(before) >= 2 and len(after) >= 2:
            return fall_of(history, name) is None and fmean(after) >= _KEPT * fmean(before)
    return False


def _fell(since_peak: Series, middle: float) -> int:
    """The step at which the fall began: no earlier than the best level before it."""
    crossed = passed(smoothed(since_peak, 3), middle, up=False)
    began = onset(since_peak, up=False, seen=crossed)
    return crossed if began is None else began
