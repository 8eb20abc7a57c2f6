"""Faults of tools and machines."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Curve, Draw, decay, geometric, line, shift
from blind.labels import ill
from blind.texts import agent_text, math_text
from blind.world import Run, plain


@ill(
    "turns_collapse",
    "4 turns to 1 in forty steps: answers without its tool",
    "verl #1569; verl #4998",
    "reward_flat decoupling",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        turns=shift(n, d.between(3.5, 4.5), 1.03, 0.12, 0.03),
        success=decay(n, 0.5, 0.55, 0.1),
    )
    return Run(d, plan).history(agent_text)


@ill(
    "turns_collapse",
    "8 turns to 1.4 over 1000 steps, score sinks",
    "verl #1569",
    "reward_fall decoupling",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(
        d, n, turns=geometric(n, d.between(7, 9), d.between(1.2, 1.5)), success=line(n, 0.5, 0.38)
    )
    return Run(d, plan).history(agent_text)


@ill("turns_collapse", "30 steps, groups of 4", "verl #3257", "reward_flat decoupling")
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(
        d,
        n,
        turns=shift(n, d.between(3, 5), 1.02, 0.4, 0.06),
        prompts=4,
        group=4,
        tasks=0,
        success=np.full(n, 0.4),
    )
    return Run(d, plan).history(agent_text)


@ill(
    "tool_errors",
    "a storm from step 90 of 200",
    "verl #4998; multimodal-search-r1 #19",
    "reward_fall infrastructure",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, turns=np.full(n, 4.0))
    plan.success = plan.success * shift(n, 1, 0.4, 0.45, 0.02)
    run = Run(d, plan)
    run.curves["tools/failure_frequency"] = np.clip(
        shift(n, 0.05, d.between(0.65, 0.8), 0.45, 0.02) + d.rng.normal(0, 0.04, n), 0, 1
    )
    return run.history(agent_text)


@ill(
    "tool_errors",
    "calls that no longer parse, 0 to 0.5 over 1000 steps",
    "Search-R1 #162",
    "reward_fall gibberish",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(d, n, turns=np.full(n, 3.0), success=line(n, 0.45, 0.25))
    run = Run(d, plan)
    bad = np.clip(line(n, 0.01, d.between(0.45, 0.6)) + d.rng.normal(0, 0.03, n), 0, 1)
    run.curves |= {"tools/parse_error_frequency": bad, "tools/failure_frequency": bad}
    return run.history(agent_text)


@ill(
    "tool_errors",
    "seven of ten calls fail from the first of 30 steps",
    "rLLM #368 of PEERS",
    "infrastructure reward_flat",
)
def _(d: Draw) -> History:
    n = d.steps(30)
    run = Run(d, plain(d, n, turns=np.full(n, 4.0), tasks=0, success=np.full(n, 0.1)))
    run.curves["tools/failure_frequency"] = np.clip(
        d.rng.normal(d.between(0.65, 0.8), 0.05, n), 0, 1
    )
    return run.history(agent_text)


def _lost(run: Run, reason: str, share: Curve) -> Run:
    started = run.curves["rollout/started"]
    lost = np.minimum(started, np.round(share * started))
    run.curves[f"rollout/termination/{reason}"] = lost
    run.curves["rollout/dropped"] = lost
    run.curves["rollout/termination/env_done"] -= lost
    return run


@ill(
    "infrastructure",
    "sandboxes fail for 40 % from the middle on",
    "PEERS: rLLM #710",
    "tool_errors",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n, turns=np.full(n, 4.0)))
    return _lost(run, "sandbox_failed", shift(n, 0.0, d.between(0.35, 0.5), 0.5, 0.01)).history(
        agent_text
    )


@ill("infrastructure", "an engine is lost in the last ten of 200 steps", "open-instruct #1473")
def _(d: Draw) -> History:
    n = d.steps(200)
    share = np.zeros(n)
    share[-10:] = d.between(0.5, 0.8)
    return _lost(Run(d, plain(d, n)), "engine_failed", share).history(math_text)


@ill(
    "infrastructure",
    "the grader crashes on a quarter of rollouts all along, 30 steps",
    "PEERS: rLLM #710",
)
def _(d: Draw) -> History:
    n = d.steps(30)
    share = np.clip(d.rng.normal(d.between(0.22, 0.32), 0.03, n), 0, 1)
    return _lost(Run(d, plain(d, n, tasks=0)), "grader_crashed", share).history(None)
