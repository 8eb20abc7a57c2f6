"""Detectors over what the policy writes: gibberish, one pattern for everything, loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, pstdev

from agentrl.health.detector import detector
from agentrl.health.findings import (
    ends,
    fine,
    found,
    improving,
    moved,
    reward_change,
    score_rise,
    shown,
    solved,
    trained,
    unknown,
)
from agentrl.health.levers import policy
from agentrl.health.measures.curves import change, number, percent
from agentrl.health.measures.texts import (
    LetterModel,
    alike_share,
    bound_to_task,
    repeated_share,
)
from agentrl.health.records import Evidence, History, RolloutFacts, Verdict
from agentrl.health.text_onset import texts_since
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status

_RIGHT = 0.9
"""Score of an answer that is right."""
_TEXTS = 32
"""Texts of one side of a comparison."""


@detector(
    bound(
        "surprise",
        1.25,
        "bits a character of what is written now, in the eyes of a model of "
        "what the first steps wrote, over those of the first steps",
        OURS,
    ),
    bound("bits", 1.0, "bits a character above the first steps", OURS),
    bound(
        "own",
        2.5,
        "bits a character of what is written now, in the eyes of a model of its own "
        "kind: a language that has an order needs fewer",
        OURS,
    ),
    bound("alien", 3.0, "the same ratio, where nothing of the first language is left", OURS),
)
def gibberish(history: History, limits: Limits) -> Verdict:
    """Text that was improbable at the start, while the reward is content.

    Two signs. From the texts: a letter model of the first steps is surprised by what is written
    now, and so is one of what is written now, which separates gibberish from a new format; a format
    that has nothing in common with the first steps has to be confirmed by the held-out score.
    From the curves: reward up while entropy climbs and KL grows fast.
    """
    name = "gibberish"
    surprising, another = _surprising(history, limits)
    evidence = [*surprising, *_loosening(history)]
    if evidence:
        gain = reward_change(history)
        content = gain is not None and not gain.down
        return found(
            name,
            Status.FAIL,
            # A sentence that stands for every answer is another language, too, and no gibberish.
            (
                "the text has next to nothing of that of the first steps"
                if another and len(evidence) == 1
                else "the text turns into gibberish"
            )
            + (" and the reward does not mind" if content else ""),
            *evidence,
            levers=[
                *policy.second_reward(history.config),
                *policy.stronger_kl(history.config),
                *policy.lower_rate(history.config),
            ],
        )
    if len(trained(history)) < 4 and "kl" not in history.metrics:
        return unknown(name, "fewer than 4 steps with stored rollouts, and no kl")
    return fine(name, "the text reads as at the start")


def _surprising(history: History, limits: Limits) -> tuple[list[Evidence], bool]:
    """Evidence of letters that surprise, and whether the model of the latest steps knows them."""
    steps = list(trained(history).values())
    if len(steps) < 4:
        return [], False
    width = min(3, len(steps) // 2)
    early, late = steps[:width], steps[-width:]
    # Models and what they judge come from different steps, and so from different tasks: siblings
    # of one group resemble each other for reasons of their own.
    base = LetterModel(_texts(early[0])).bits(_texts(*early[1:]))
    now = LetterModel(_texts(*early)).bits(_texts(*late))
    own = LetterModel(_texts(late[0])).bits(_texts(*late[1:]))
    if base is None or now is None or own is None:
        return [], False
    factor, bits = limits["gibberish/surprise"], limits["gibberish/bits"]
    own_bound = max(1.1 * base, limits["gibberish/own"])
    strange = now >= max(factor * base, base + bits) and own >= own_bound
    # Another way to be paid for nothing has little variety, but nothing of a language either.
    rise = score_rise(history)
    alien = now >= limits["gibberish/alien"] * base and now >= base + 3 * bits
    if not strange and not (alien and rise is not None and not rise.up):
        return [], False
    known = LetterModel(_texts(*early))
    since = texts_since(history, lambda facts: known.bits(_texts(facts)), before=base, now=now)
    return [
        shown(
            [fact for step in late for fact in step],
            f"a letter model of the first steps needs {number(now)} bits a character for what is "
            f"written now, {number(base)} for the first steps; one of the latest steps needs "
            f"{number(own)} for its own kind",
            since=since.since,
            sound_step=since.sound_step,
        )
    ], not strange


def _texts(*steps: Sequence[RolloutFacts]) -> list[str]:
    """Some texts of the steps, of as many tasks as there are."""
    by_task: dict[str, list[str]] = {}
    for step in steps:
        for fact in step:
            if len(fact.text) >= 8:
                by_task.setdefault(fact.task_id, []).append(fact.text)
    most = max(map(len, by_task.values()), default=0)
    turns = (
        texts[index] for index in range(most) for texts in by_task.values() if index < len(texts)
    )
    return [text for text, _ in zip(turns, range(_TEXTS), strict=False)]


def _loosening(history: History) -> list[Evidence]:
    """Reward up, entropy up and KL growing faster and faster."""
    kl, entropy = history.metrics.get("kl"), history.metrics.get("entropy")
    gain = reward_change(history)
    if kl is None or entropy is None or gain is None or not gain.up or len(kl.values) < 10:
        return []
    opened, left = change(entropy), change(kl)
    if opened is None or left is None or _score_follows(history):
        return []
    rises = opened.up and opened.end > 1.3 * opened.start and opened.gain > 0.3
    if not rises or not left.up or left.end < 0.3 or left.end < 5 * max(left.start, 1e-6):
        return []
    return [
        moved("reward", history.metrics["reward"], gain, dates=False),
        moved("entropy", entropy, opened),
        moved("kl", kl, left),
    ]


def _score_follows(history: History) -> bool:
    rise = score_rise(history)
    return rise is not None and rise.up


@detector(
    bound(
        "alike",
        0.5,
        "share of pairs of answers to different tasks that are near-identical",
        OURS,
    ),
    bound("skew", 2.0, "skewness of the rewards of a step (right-tailed)", OURS),
    bound("words", 8, "words of an answer below which likeness says nothing without a score", OURS),
)
def pattern_collapse(history: History, limits: Limits) -> Verdict:
    """Near-identical answers to different tasks, or rewards with a heavy right tail."""
    name = "pattern_collapse"
    first, last = ends(history)
    if not last:
        return unknown(name, "fewer than 2 steps with stored rollouts")
    evidence = [*_alike(history, first, last, limits), *_right_tail(first, last, limits)]
    if not evidence:
        return fine(name, "answers to different tasks differ")
    gain = reward_change(history)
    stuck = gain is None or not improving(history)
    return found(
        name,
        Status.FAIL if stuck else Status.WARN,
        "answers collapse into one pattern"
        if "identical" in evidence[0].text
        else "a few rollouts earn far more than the rest",
        *evidence,
        levers=[
            *policy.stronger_kl(history.config),
            *policy.clip_higher(history.config),
            *policy.see_held_out(history.config),
        ],
    )


def _alike(
    history: History, first: Sequence[RolloutFacts], last: Sequence[RolloutFacts], limits: Limits
) -> list[Evidence]:
    before, now = (alike_share([(f.task_id, f.text) for f in part]) for part in (first, last))
    if now is None or now < limits["pattern_collapse/alike"]:
        return []
    if before is not None and now < before + 0.3:
        return []
    if _solves(last) or bound_to_task([(f.task_id, f.text) for f in _right_ones(last)]):
        return []
    words = median(len(fact.text.split()) for fact in last)
    if words < limits["pattern_collapse/words"] and all(fact.score is None for fact in last):
        return []
    text = f"{percent(now)} of the answers to different tasks are near-identical"
    since = texts_since(
        history,
        lambda facts: alike_share([(fact.task_id, fact.text) for fact in facts]),
        before=before or 0.0,
        now=now,
    )
    start = "" if before is None else f", {percent(before)} at the start"
    return [shown(last, text + start, since=since.since, sound_step=since.sound_step)]


def _right_ones(facts: Sequence[RolloutFacts]) -> list[RolloutFacts]:
    """Those that the score calls right, or that get the highest reward: right siblings agree.

    None where fewer than a quarter are right: one answer for everything is right now and then.
    """
    if any(fact.score is not None for fact in facts):
        right = [fact for fact in facts if fact.score is not None and fact.score >= _RIGHT]
        return right if len(right) >= len(facts) / 4 else []
    top = max((fact.reward for fact in facts if fact.reward is not None), default=None)
    return [fact for fact in facts if top is not None and fact.reward == top]


def _solves(facts: Sequence[RolloutFacts]) -> bool:
    """Whether the tasks want one and the same answer, and get it."""
    scores = [fact.score for fact in facts if fact.score is not None]
    return bool(scores) and fmean(scores) >= 0.9


def _right_tail(
    first: Sequence[RolloutFacts], last: Sequence[RolloutFacts], limits: Limits
) -> list[Evidence]:
    before, now = _skewness(first), _skewness(last)
    bound = limits["pattern_collapse/skew"]
    if now is None or now < bound or (before is not None and before > bound / 2):
        return []
    rewards = [fact.reward for fact in last if fact.reward is not None]
    middle = median(rewards)
    if max(rewards) < middle + 4 * max(pstdev(rewards) / 2, 1e-9):
        return []
    top = sorted(last, key=lambda fact: -(fact.reward or -math.inf))[:4]
    start = "" if before is None else f", {number(before)} at the start"
    return [
        shown(
            top,
            f"rewards are right-tailed: skewness {number(now)}{start}; the highest is "
            f"{number(max(rewards))}, the median {number(middle)}",
        )
    ]


def _skewness(facts: Sequence[RolloutFacts]) -> float | None:
    """Of rewards that take many values; None where they are verdicts or too few."""
    rewards = [f.reward for f in facts if f.reward is not None and math.isfinite(f.reward)]
    if len(rewards) < 24 or len(set(rewards)) < 12:
        return None
    middle, spread = fmean(rewards), pstdev(rewards)
    if spread <= 1e-12:
        return None
    return fmean(((reward - middle) / spread) ** 3 for reward in rewards)


@detector(
    bound("loops", 0.5, "share of a text's 4-word sequences that it wrote before: it loops", OURS),
    bound("share", 0.3, "share of rollouts that loop", OURS),
    bound("rise", 0.2, "by which that share grew since the start", OURS),
)
def repetition(history: History, limits: Limits) -> Verdict:
    """Text that goes round in circles."""
    name = "repetition"
    first, last = ends(history)
    if not last:
        return unknown(name, "fewer than 2 steps with stored rollouts")
    loops = limits["repetition/loops"]
    looping = [fact for fact in last[: 3 * _TEXTS] if repeated_share(fact.text) >= loops]
    before = fmean(repeated_share(fact.text) >= loops for fact in first[: 3 * _TEXTS])
    now = len(looping) / min(len(last), 3 * _TEXTS)
    if now < limits["repetition/share"] or now < before + limits["repetition/rise"]:
        return fine(name, f"{percent(now)} of the rollouts loop, {percent(before)} at the start")
    if solved(history):
        return fine(name, f"{percent(now)} of the rollouts loop, and the held-out tasks are solved")
    since = texts_since(
        history,
        lambda facts: fmean(repeated_share(fact.text) >= loops for fact in facts[: 3 * _TEXTS]),
        before=before,
        now=now,
    )
    return found(
        name,
        Status.FAIL if now >= 2 * limits["repetition/share"] else Status.WARN,
        f"{percent(now)} of the rollouts repeat themselves, {percent(before)} at the start",
        shown(
            looping,
            f"more than {percent(loops)} of their 4-word sequences stood there before",
            since=since.since,
            sound_step=since.sound_step,
        ),
        levers=[
            # Penalties near the limit see nothing of loops that end before it.
            *(policy.shorter(history.config) if _cut_off(history) else ()),
            *policy.stronger_kl(history.config),
        ],
    )


def _cut_off(history: History) -> bool:
    ratio = history.metrics.get("completions/clipped_ratio")
    return ratio is None or max(ratio.values[-10:]) > 0
