"""Detector over the environment's own score beside the reward that is paid."""

from __future__ import annotations

from agentrl.health.detector import detector
from agentrl.health.findings import (
    fine,
    found,
    moved,
    reward_range,
    score_rise,
    shown,
    unknown,
)
from agentrl.health.levers import policy
from agentrl.health.levers.policy import Config, value_of
from agentrl.health.measures.curves import Change, change, difference, percent, since, smoothed
from agentrl.health.measures.paid_wrong import paid_wrong
from agentrl.health.movement import movement, part_metrics
from agentrl.health.own_score import own_score
from agentrl.health.records import Dating, Evidence, History, Lever, Series, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status

_LEAST_STEPS = 10
_FULL_PAY = 1.0
"""Reward of a solved task, by the scale of scores."""
_SMALL_PAY_STEPS = 30
"""Steps without a right rollout after which less pay than that counts, too."""
_LEAST_LOST = 0.05
"""Fall of the score from its best level that counts."""


@detector(
    bound("gain", 0.1, "rise of the reward, as a share of its range, worth comparing", OURS),
    bound("drop", 0.02, "least fall of the score that counts", OURS),
    bound("paid_wrong", 0.1, "rise of the share of paid rollouts that the score calls wrong", OURS),
    remembered=True,
)
def score_falls(history: History, limits: Limits) -> Verdict:
    """The reward rises, and the score that the environment gives beside it falls: the policy does
    what is paid for instead of the task, and the environment itself admits it. A score that holds,
    while more and more of what is paid is wrong by it, is the beginning of that."""
    name = "score_falls"
    if own_score(history) != "score" or "reward" not in history.metrics:
        return unknown(name, "the environment gives no score beside the reward")
    reward, score = history.metrics["reward"], history.metrics["score"]
    if (wrong := _all_wrong(history, len(score.values))) is not None:
        return wrong
    gain, own = movement(history, "reward"), movement(history, "score")
    if gain is None or own is None or len(score.values) < _LEAST_STEPS:
        return unknown(name, f"{len(score.values)} of the {_LEAST_STEPS} steps it needs")
    text = f"reward {gain.text()}, score {own.text()}"
    if not gain.up or gain.gain < limits["score_falls/gain"] * reward_range(history, reward):
        risen = "has hardly risen" if gain.gain > 0 else "does not rise"
        return _paid_wrong(history, limits) or fine(name, f"the reward {risen}: {text}")
    if not own.down or -own.gain < limits["score_falls/drop"]:
        # What was learned before the reward was hacked hides the fall from the start.
        own = _lost_since_best(reward, score, limits)
    if own is None:
        wrong = _paid_wrong(history, limits) or _wrong_earn_more(history, gain)
        return wrong or fine(name, f"the score does not fall while the reward rises: {text}")
    rise = score_rise(history)
    if rise is not None and rise.up:
        return fine(name, f"{text}, and the held-out score rises: {rise.text()}")
    part = _risen_part(history)
    return found(
        name,
        Status.FAIL,
        "the reward rises and the environment's own score falls",
        moved("reward", reward, gain, f"reward {gain.text()}", dates=False),
        moved("score", score, own, f"score {own.text()}"),
        *([moved(part[0], history.metrics[part[0]], part[1], dates=False)] if part else []),
        levers=[
            *_lighter(history.config, part[0] if part else ""),
            *policy.stronger_kl(history.config),
            *policy.see_held_out(history.config),
        ],
    )


def _all_wrong(history: History, steps: int) -> Verdict | None:
    """The finding that nothing is right by the score, and wrong answers get one and the same pay.

    A small bonus, as for a format, is paid for wrong answers in the first steps of any hard task.
    """
    told = paid_wrong(history.rollouts)
    if told is None or not (told.none_right and told.doubtful):
        return None
    full = told.limits.least >= _FULL_PAY / 2
    if steps < (_LEAST_STEPS if full else _SMALL_PAY_STEPS):
        return None
    paid = [
        f for f in history.rollouts if f.kind == "train" and told.limits.wrong(f.reward, f.score)
    ]
    return found(
        "score_falls",
        Status.WARN,
        f"all {told.whole.paid} sampled rollouts that were paid are wrong by the score",
        shown(paid, f"{told.text()}; {told.limits.text()}", since=min(f.step for f in paid)),
        levers=policy.see_held_out(history.config),
    )


def _paid_wrong(history: History, limits: Limits) -> Verdict | None:
    """The finding that a growing share of what is paid is wrong by the score."""
    told = paid_wrong(history.rollouts)
    if told is None or told.since is None:
        return None
    first, last = told.ends.first, told.ends.last
    if last.share - first.share < limits["score_falls/paid_wrong"]:
        return None
    sound = first.last_step
    return found(
        "score_falls",
        Status.WARN,
        "more and more of the answers that are paid are wrong by the score: "
        f"{percent(first.share)} -> {percent(last.share)}",
        Evidence(
            text=f"of the rollouts sampled, {told.text()}",
            first_step=told.since,
            last_step=told.whole.last_step,
            dating=Dating.EXACT,
            sound_step=sound if sound < told.since else None,
        ),
        levers=[*policy.stronger_kl(history.config), *policy.see_held_out(history.config)],
    )


def _wrong_earn_more(history: History, gain: Change) -> Verdict | None:
    """The finding that the reward rises by wrong answers, which earn what right ones do."""
    told, score = paid_wrong(history.rollouts), movement(history, "score")
    pay = told.wrong_pay if told is not None and not told.partial else None
    if told is None or pay is None or score is None or not pay.up:
        return None
    # Most of the rise, and most of what is paid: a reward that a score follows late is neither.
    much = pay.gain >= gain.gain / 2 and told.ends.last.share >= 1 / 2
    held = score_rise(history)
    if not much or score.high >= gain.gain / 4 or (held is not None and held.up):
        return None
    last, part = told.ends.last, _risen_part(history)
    paid = [
        f for f in history.rollouts if f.kind == "train" and told.limits.wrong(f.reward, f.score)
    ]
    return found(
        "score_falls",
        Status.WARN,
        f"the reward rises by wrong answers: they earn {pay.text()}, and the score does not rise",
        moved("reward", history.metrics["reward"], gain, f"reward {gain.text()}"),
        shown(paid[-4:], f"of what is paid is wrong {last.text()}; {told.limits.text()}"),
        levers=[
            *_lighter(history.config, part[0] if part else ""),
            *policy.stronger_kl(history.config),
            *policy.see_held_out(history.config),
        ],
    )


def _lost_since_best(reward: Series, score: Series, limits: Limits) -> Change | None:
    """The fall of the score from its best level, if the reward has risen since then."""
    width = max(5, len(score.values) // 10)
    calm = smoothed(score, width)
    peak = calm.values.index(max(calm.values))
    after = change(since(reward, calm.steps[peak]))
    if after is None or not after.up:
        return None
    if after.gain < limits["score_falls/gain"] * (max(reward.values) - min(reward.values)):
        return None
    lost = difference(score.values[peak : peak + width], score.values[-width:])
    # The best of many windows is the luckiest: twice the usual interval.
    sure = lost.gain + 2 * (lost.high - lost.gain) < 0
    return lost if sure and -lost.gain >= _LEAST_LOST else None


def _risen_part(history: History) -> tuple[str, Change] | None:
    """The part of the reward, other than the environment's own, that has risen most for certain."""
    best: tuple[str, Change] | None = None
    for metric in part_metrics(history).values():
        gain = movement(history, metric)
        if metric == "rewards/env/mean" or gain is None or not gain.up:
            continue
        if best is None or gain.gain > best[1].gain:
            best = metric, gain
    return best


def _lighter(config: Config, metric: str) -> list[Lever]:
    """Pay less for the part that has risen, where the config names it."""
    name = metric.removeprefix("rewards/").removesuffix("/mean")
    for kind in ("reward.functions", "reward.models"):
        section = f"{kind}.{name}"
        if name and any(key.startswith(f"{section}.") for key in config):
            weight = float(value_of(config, f"{section}.weight", 1.0))
            return [
                Lever(
                    key=f"{section}.weight",
                    value=round(weight / 2, 6),
                    why=f"{section} is the part that has risen while the score fell: halve what it "
                    "counts, or pay it only where the score is good (ours).",
                )
            ]
    return []
