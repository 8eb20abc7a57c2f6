"""Faults of tools and machines, with the step at which they begin."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, noisy
from blind.texts import agent_text, math_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import agent, failing, lost
from onset.labels import ill
from onset.times import Times

_DOWN = "reward_fall reward_flat empty_gradient"
_BASE = 0.04
"""Share of calls that fail in a sound run."""


@ill("tool_errors", "the only tool is dead", "sudden", steps=80, onset=46, also=_DOWN)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps)
    plan.success = plan.success * (1 - 0.97 * t.ramp(2))
    share = _BASE + d.between(0.93, 0.95) * t.on()
    return failing(Run(d, plan), share, 0.01).history(agent_text)


@ill("tool_errors", "one tool of three is dead", "sudden", steps=200, onset=90, also=_DOWN)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 5.0)
    plan.success = plan.success * (1 - d.between(0.3, 0.4) * t.on())
    run = failing(Run(d, plan), _BASE + d.between(0.3, 0.36) * t.on())
    errors, fine = run.curves["tools/status/error"], run.curves["tools/status/ok"]
    run.curves |= {
        "tools/by_name/search/ok": np.round(0.33 * fine * (1 - t.on())),
        "tools/by_name/open_page/ok": np.round(fine * (0.67 + 0.33 * t.on())),
        "tools/by_name/search/error": np.round(errors * (0.3 + 0.6 * t.on())),
        "tools/by_name/open_page/error": np.round(errors * (0.7 - 0.6 * t.on())),
    }
    return run.history(agent_text)


@ill("tool_errors", "a rate limit that grows tighter", "slow", steps=200, onset=60, also=_DOWN)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps)
    plan.success = plan.success * (1 - 0.55 * t.ramp(90))
    share = _BASE + d.between(0.5, 0.6) * t.ramp(80)
    return failing(Run(d, plan), share).history(agent_text)


@ill(
    "tool_errors",
    "calls stop parsing within twenty steps",
    "slow",
    steps=150,
    onset=50,
    also=f"{_DOWN} gibberish",
)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 3.0)
    plan.success = plan.success * (1 - 0.5 * t.ramp(20))
    share = 0.03 + d.between(0.45, 0.55) * t.ramp(20)
    run = failing(Run(d, plan), share)
    run.curves["tools/parse_error_frequency"] = run.curves["tools/failure_frequency"] * 0.9
    return run.history(agent_text)


@ill("tool_errors", "healed after 18 steps", "healed", steps=150, onset=40, over=58, also=_DOWN)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps)
    plan.success = plan.success * (1 - 0.8 * t.on())
    share = _BASE + d.between(0.75, 0.85) * t.on()
    return failing(Run(d, plan), share).history(agent_text)


@ill("tool_errors", "half of a short run, groups of 4", "sudden", steps=40, onset=20, also=_DOWN)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 3.0, prompts=8, group=4, eval_every=10)
    plan.success = plan.success * (1 - 0.8 * t.on())
    return failing(Run(d, plan), _BASE + d.between(0.6, 0.75) * t.on(), 0.06).history(agent_text)


@ill(
    "tool_errors",
    "calls time out",
    "sudden",
    steps=400,
    onset=250,
    also=f"{_DOWN} infrastructure turns_collapse",
)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 6.0)
    plan.success = plan.success * (1 - 0.5 * t.ramp(3))
    run = failing(Run(d, plan), _BASE + d.between(0.45, 0.55) * t.on())
    run.curves["tools/status/timeout"] = run.curves.pop("tools/status/error")
    run.curves["tools/duration_s/mean"] = noisy(d, 1.5 + 14 * t.on(), 0.2)
    run.curves["timing_s/step"] = run.curves["timing_s/step"] * (1 + 1.5 * t.on())
    return run.history(agent_text)


@ill(
    "turns_collapse",
    "five turns to one within 120 steps",
    "slow",
    steps=240,
    onset=60,
    also="reward_flat decoupling",
)
def _(d: Draw, t: Times) -> History:
    first = d.between(4.5, 5.5)
    plan = agent(d, t.steps, first + (1.05 - first) * t.ramp(120))
    plan.success = t.held(plan.success)
    return failing(Run(d, plan), np.full(t.steps, _BASE)).history(agent_text)


@ill(
    "turns_collapse",
    "tools given up within six steps",
    "sudden",
    steps=120,
    onset=70,
    also="reward_flat reward_fall decoupling",
)
def _(d: Draw, t: Times) -> History:
    first = d.between(3.6, 4.4)
    plan = agent(d, t.steps, first + (1.02 - first) * t.ramp(6))
    plan.success = t.held(plan.success) * (1 - 0.25 * t.ramp(6))
    return failing(Run(d, plan), np.full(t.steps, _BASE)).history(agent_text)


@ill(
    "turns_collapse",
    "eight turns to 1.3, a factor a step, groups of 16",
    "slow",
    steps=400,
    onset=100,
    also="reward_flat reward_fall decoupling",
)
def _(d: Draw, t: Times) -> History:
    last = d.between(1.2, 1.4) / 8
    plan = agent(d, t.steps, 8.0 * last ** t.ramp(260), prompts=8, group=16)
    plan.success = t.held(plan.success) * (1 - 0.2 * t.ramp(260))
    return Run(d, plan).history(agent_text)


@ill(
    "infrastructure",
    "an outage of 15 steps that is over",
    "healed",
    steps=120,
    onset=30,
    over=45,
    also="tool_errors",
)
def _(d: Draw, t: Times) -> History:
    run = Run(d, agent(d, t.steps))
    return lost(run, "sandbox_failed", d.between(0.5, 0.7) * t.on()).history(agent_text)


@ill("infrastructure", "sandboxes fail and stay so", "sudden", steps=120, onset=90)
def _(d: Draw, t: Times) -> History:
    run = Run(d, agent(d, t.steps))
    return lost(run, "sandbox_failed", d.between(0.4, 0.5) * t.on()).history(agent_text)


@ill("infrastructure", "engines leak until half is lost", "slow", steps=250, onset=100)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps))
    run = lost(run, "engine_failed", d.between(0.45, 0.55) * t.ramp(100))
    run.curves["timing_s/step"] = run.curves["timing_s/step"] * (1 + 0.8 * t.ramp(100))
    return run.history(math_text)


@ill(
    "infrastructure",
    "the grader's server is away for twenty steps",
    "healed",
    steps=200,
    onset=60,
    over=80,
)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps, group=16, prompts=8))
    return lost(run, "grader_crashed", d.between(0.35, 0.45) * t.on()).history()


@ill("infrastructure", "the last eight of sixty steps", "sudden", steps=60, onset=53)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps, prompts=8, group=4))
    return lost(run, "env_crashed", d.between(0.45, 0.6) * t.on()).history()
