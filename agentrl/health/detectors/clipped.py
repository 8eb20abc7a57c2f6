"""Detector over rewards that a clip makes equal."""

from __future__ import annotations

from statistics import fmean

from agentrl.health.detector import detector
from agentrl.health.findings import fine, found, seen, unknown
from agentrl.health.level import steps_text, sustained
from agentrl.health.levers import policy
from agentrl.health.measures.curves import percent
from agentrl.health.records import History, Verdict
from agentrl.health.thresholds import OURS, Limits, bound
from agentrl.types.finding import Status


@detector(
    bound("share", 0.5, "share of the rewards of a step that lie on a bound of a clip", OURS),
    bound("steps", 3, "steps that count as sustained", OURS),
)
def reward_clipped(history: History, limits: Limits) -> Verdict:
    """Most rewards lie on a bound of `reward.clip` or `reward.clip_raw`, where those that differed
    are equal. A clip that changes no reward, as [0, 1] on a verdict of 0 or 1, is none."""
    name, most = "reward_clipped", limits["reward_clipped/share"]
    seen_any = False
    for key in ("clip_raw", "clip"):  # the first may be why the second has nothing to do
        held, changed = f"reward_shaping/{key}/at_bound", f"reward_shaping/{key}/share"
        seen_any = seen_any or held in history.metrics
        steps = limits["reward_clipped/steps"]
        stretch = sustained(history, held, lambda v: v > most, steps, mean=True)
        bites = sustained(history, changed, lambda v: v > 0, steps, mean=True)
        if stretch is None or bites is None:
            continue
        level = fmean(history.metrics[held].values[-int(steps) :])
        text = f"{percent(level)} of the rewards lie on a bound of reward.{key}"
        return found(
            name,
            Status.WARN,
            f"{text}: what they measured is lost",
            seen(held, stretch, f"{text}; more than {percent(most)} for {steps_text(stretch)}"),
            levers=policy.wider_clip(history.config, f"reward.{key}"),
        )
    if not seen_any:
        return unknown(name, "rewards are not clipped")
    return fine(name, "few rewards lie on a bound of a clip")
