"""Detectors over the length of responses: length that pays, and limits that truncate."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from agentrl.health.detector import detector
from agentrl.health.findings import (
    ends,
    fall_of,
    fine,
    found,
    held_out,
    moved,
    reward_change,
    score_rise_since,
    seen,
    shown,
    stalled,
    too_few,
    unknown,
)
from agentrl.health.level import steps_text, sustained
from agentrl.health.levers import policy, system
from agentrl.health.measures.curves import Stretch, change, difference, number, percent
from agentrl.health.measures.onset import onset
from agentrl.health.movement import movement
from agentrl.health.records import History, RolloutFacts, Verdict
from agentrl.health.thresholds import OURS, USUAL, Limits, bound
from agentrl.types import Termination
from agentrl.types.finding import Status


@detector(
    bound("truncated", 0.7, "share of rollouts cut off by a limit", USUAL),
    bound("rise", 1.4, "mean length now over mean length at the start", OURS),
    bound("pays", 0.5, "correlation of reward and length inside groups", OURS),
    bound("steps", 10, "steps before it is looked at", OURS),
    remembered=True,
)
def length_hacking(history: History, limits: Limits) -> Verdict:
    """Responses grow because length pays, until the limit truncates them."""
    name, metric = "length_hacking", "completions/mean_length"
    series = history.metrics.get(metric)
    if series is None or len(series.values) < limits["length_hacking/steps"]:
        return too_few(name, "the response length", series, limits["length_hacking/steps"])
    grown = change(series, 4)
    ratio = history.metrics.get("completions/clipped_ratio")
    shift = change(ratio, 4) if ratio is not None else None
    assert grown is not None, "10 values were counted above"
    rise = grown.end / grown.start if grown.start > 0 else math.inf
    if not grown.up or rise < limits["length_hacking/rise"]:
        return fine(name, f"mean length {number(grown.start)} -> {number(grown.end)} tokens")
    began = onset(series, up=True) or series.steps[0]
    score = score_rise_since(history, began)
    if score is not None and score.up:
        return fine(name, f"longer ({number(rise)} times) and better: held out {score.text()}")
    _, last = ends(history)
    pays = pays_for_length(last)
    capped = (
        shift is not None and shift.end >= limits["length_hacking/truncated"] and shift.gain > 0.2
    )
    paid = pays is not None and pays >= limits["length_hacking/pays"]
    rising = shift is not None and shift.up and shift.gain > 0.2
    worse = _only_the_reward_gains(history)
    if not (capped or paid or rising or worse):
        return fine(name, f"{number(rise)} times longer, and length does not pay")
    # Length that nothing pays for is no hacking: what it leads to, or comes from, is the fault.
    unpaid = not paid and stalled(history, began)
    cut_off = shift is not None and shift.end > 0.05
    text = f"mean length {grown.text()} tokens"
    evidence = [moved(metric, series, grown, text, dates=not (unpaid and cut_off))]
    if cut_off and shift is not None and ratio is not None:
        evidence.append(
            moved("completions/clipped_ratio", ratio, shift, f"cut off: {shift.text(percent)}")
        )
    if paid and pays is not None:
        longest = sorted(last, key=lambda fact: -fact.action_tokens)[:4]
        evidence.append(
            shown(longest, f"inside groups reward and length correlate by {number(pays)}")
        )
    flat = score is not None or _score_flat(history)
    return found(
        name,
        Status.FAIL if capped or (paid and flat) else Status.WARN,
        f"responses grow {number(rise)} times longer"
        + (
            ", and length pays"
            if paid
            else ", into the limit"
            if capped
            else ", and the held-out score falls"
            if worse
            else ""
        ),
        *evidence,
        levers=[*policy.shorter(history.config), *policy.token_level(history.config)],
        explained_by=("truncation", "repetition", "gibberish") if unpaid else (),
    )


def _only_the_reward_gains(history: History) -> bool:
    """Whether the reward rises for certain while a held-out score falls for certain."""
    gain = reward_change(history)
    falls = any(fall_of(history, name) for name in held_out(history))
    return falls and gain is not None and gain.up


def _score_flat(history: History) -> bool:
    """Whether the environment's own verdict does not rise although it is not the reward itself."""
    scores, rewards = history.metrics.get("score"), history.metrics.get("reward")
    if scores is None or rewards is None or scores.values == rewards.values:
        return False
    moved = movement(history, "score")
    return moved is not None and not moved.up


def pays_for_length(facts: Sequence[RolloutFacts]) -> float | None:
    """Correlation of reward and length inside groups, pooled; None where neither varies."""
    groups: dict[tuple[int, str], list[RolloutFacts]] = {}
    for fact in facts:
        if fact.reward is not None and math.isfinite(fact.reward):
            groups.setdefault((fact.step, fact.group_id), []).append(fact)
    both = squares = lengths = 0.0
    pairs = 0
    for members in groups.values():
        if len(members) < 2:
            continue
        reward = fmean(fact.reward or 0.0 for fact in members)
        length = fmean(fact.action_tokens for fact in members)
        for fact in members:
            r, n = (fact.reward or 0.0) - reward, fact.action_tokens - length
            both, squares, lengths = both + r * n, squares + r * r, lengths + n * n
        pairs += len(members)
    if pairs < 12 or squares <= 0 or lengths <= 0:
        return None
    return both / math.sqrt(squares * lengths)


@detector(
    bound("bound", 0.7, "share of rollouts cut off by a limit", USUAL),
    bound("harms", 0.3, "share that is too many where the reward fell when it came", OURS),
    bound("wastes", 0.25, "share that is too many where it is paid next to nothing", OURS),
    bound("steps", 10, "steps that count as sustained", OURS),
)
def truncation(history: History, limits: Limits) -> Verdict:
    """Most rollouts end at a limit: what they would have done is never seen."""
    name, metric = "truncation", "completions/clipped_ratio"
    series = history.metrics.get(metric)
    if series is None:
        return unknown(name, f"{metric} is not logged")
    bound = limits["truncation/bound"]
    stretch = sustained(history, metric, lambda v: v > bound, limits["truncation/steps"], mean=True)
    level = median(series.values[-5:])
    if stretch is None:
        stretch = _harmful(history, limits)
        bound = limits["truncation/harms"]
    if stretch is None:
        stretch = _wasted(history, limits)
        bound = limits["truncation/wastes"]
    if stretch is None:
        return fine(name, f"{percent(level)} of the rollouts are cut off by a limit")
    limit, counted = _ended_by(history)
    level = fmean(series.values[-int(limits["truncation/steps"]) :])
    return found(
        name,
        Status.FAIL if stretch.length >= 2 * limits["truncation/steps"] else Status.WARN,
        f"{percent(level)} of the rollouts are cut off, most by rollout.{limit}",
        seen(
            metric,
            stretch,
            f"above {percent(bound)} for {steps_text(stretch)}{counted}",
        ),
        levers=[
            *system.more_room(history.config, limit),
            *([] if "turns" in limit else policy.shorter(history.config, ended_by=limit)),
        ],
    )


def _ended_by(history: History) -> tuple[str, str]:
    """The limit that truncates most rollouts of the latest steps, and the count in words.

    Of a run whose rollouts are not stored, it is what the counts of endings and the config allow.
    """
    _, last = ends(history)
    counts = Counter(fact.limit for fact in last if fact.limit)
    (limit, count), *_ = counts.most_common(1) or [("", 0)]
    if limit in system.LIMITS:
        return limit, f"; {limit} ended {count} of {len(last)} rollouts of the latest steps"
    turns, tokens, context = (
        _last(history, ending)
        for ending in (Termination.MAX_TURNS, Termination.MAX_TOKENS, Termination.CONTEXT_FULL)
    )
    if turns > tokens + context:
        return "max_assistant_turns", ""
    if context > tokens:
        return "max_context_tokens", ""
    of = {key: system.limit_of(history.config, key) for key in system.LIMITS}
    reached = of["max_assistant_turns"] * of["max_turn_tokens"] >= of["max_response_tokens"]
    return ("max_response_tokens" if reached else "max_turn_tokens"), ""


def _harmful(history: History, limits: Limits) -> Stretch | None:
    """Rollouts that are cut off since some step at which the reward fell for good."""
    reward, metric = history.metrics.get("reward"), "completions/clipped_ratio"
    most, steps = limits["truncation/harms"], limits["truncation/steps"]
    stretch = sustained(history, metric, lambda v: v > most, steps, mean=True)
    if stretch is None or reward is None:
        return None
    at = bisect_left(reward.steps, stretch.first_step)
    before, after = reward.values[max(0, at - 20) : at], reward.values[at:]
    cut = history.metrics[metric].values[
        : bisect_left(history.metrics[metric].steps, stretch.first_step)
    ]
    if min(len(before), len(after), len(cut)) < 5 or median(cut[-20:]) > most / 2:
        return None
    lost = difference(before, after)
    return stretch if lost.down and -lost.gain > 0.2 * max(abs(lost.start), 1e-3) else None


def _wasted(history: History, limits: Limits) -> Stretch | None:
    """Rollouts that are cut off for long, and are paid next to nothing beside the others."""
    metric, steps = "completions/clipped_ratio", 2 * limits["truncation/steps"]
    most = limits["truncation/wastes"]
    stretch = sustained(history, metric, lambda v: v > most, steps, mean=True)
    known = [fact for fact in history.rollouts if fact.kind == "train" and fact.reward is not None]
    cut, whole = (
        [fact.reward or 0.0 for fact in known if bool(fact.limit) is limited]
        for limited in (True, False)
    )
    if stretch is None or not cut or not whole or fmean(whole) <= 0:
        return None
    return stretch if fmean(cut) < 0.1 * fmean(whole) else None


def _last(history: History, name: Termination) -> float:
    series = history.metrics.get(f"rollout/termination/{name}")
    return sum(series.values[-5:]) if series else 0.0
