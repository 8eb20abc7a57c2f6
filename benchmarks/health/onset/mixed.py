"""Two faults in one run: which began first, and when the other began."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, noisy
from blind.texts import agent_text, math_text, salad_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import agent, apart, failing, lost, valued
from onset.labels import ill
from onset.times import Times


def _later(t: Times) -> int:
    assert t.second is not None
    return t.second


@ill(
    "infrastructure", "then a gap", "mixed", steps=140, onset=40,
    second=("sampler_learner_gap", 70), also="tool_errors reward_flat clip_fraction",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps)
    plan.success = t.held(plan.success, _later(t))
    run = lost(Run(d, plan), "sandbox_failed", d.between(0.4, 0.5) * t.on())
    return apart(run, 0.012 + 0.5 * t.on(_later(t))).history(agent_text)


@ill(
    "tool_errors", "then entropy collapses", "mixed", steps=160, onset=50,
    second=("entropy_collapse", 90), also="reward_fall reward_flat empty_gradient pattern_collapse",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps)
    plan.success = t.held(plan.success * (1 - d.between(0.45, 0.55) * t.on()), _later(t))
    plan.entropy = plan.entropy * 0.03 ** t.ramp(20, _later(t))
    return failing(Run(d, plan), 0.04 + 0.55 * t.on()).history(agent_text)


@ill(
    "kl_too_large", "creeps, then tools fail", "mixed", steps=180, onset=60,
    second=("tool_errors", 120), also="reward_fall reward_flat decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, kl=0.05 * d.between(55.0, 70.0) ** t.ramp(50))
    plan.success = t.held(plan.success) * (1 - 0.5 * t.on(_later(t)))
    return failing(Run(d, plan), 0.04 + 0.6 * t.on(_later(t))).history(agent_text)


@ill(
    "truncation", "then rollouts are lost", "mixed", steps=150, onset=40,
    second=("infrastructure", 100), also="reward_fall reward_flat length_hacking",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=1024)
    plan.length = 320 * d.between(5.0, 6.0) ** t.ramp(10)
    plan.success = plan.success * (1 - 0.6 * t.ramp(10))
    run = Run(d, plan)
    return lost(run, "engine_failed", 0.45 * t.on(_later(t))).history()


@ill(
    "value_divergence", "then entropy explodes", "mixed", steps=160, onset=60,
    second=("entropy_explosion", 100),
    also="reward_fall reward_flat grad_norm gibberish kl_too_large empty_gradient repetition",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.entropy = plan.entropy + d.between(3.0, 4.0) * t.ramp(10, _later(t))
    plan.success = t.held(plan.success) * (1 - 0.9 * t.ramp(10, _later(t) + 3))
    run = valued(d, plan, 0.08 + d.between(3, 5) * t.ramp(5), 0.6 - 2.0 * t.ramp(5))
    return run.history(t.texts(math_text, salad_text, 0.8, 10, _later(t) + 3))


@ill(
    "sampler_learner_gap", "then the gradient blows up", "mixed", steps=120, onset=50,
    second=("grad_norm", 90),
    also="reward_fall reward_flat clip_fraction kl_too_large entropy_explosion empty_gradient",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.success = t.held(plan.success) * (1 - 0.8 * t.ramp(5, _later(t) + 1))
    plan.kl = plan.kl + 2.5 * t.ramp(6, _later(t) + 1)
    run = apart(Run(d, plan), 0.012 + d.between(0.012, 0.016) * t.since())
    size = noisy(d, np.full(t.steps, 10 ** d.between(2, 3)), 0.4)
    run.curves["train/grad_norm"] += size * t.on(_later(t))
    return run.history()


@ill(
    "empty_gradient", "then an outage", "mixed", steps=150, onset=50,
    second=("infrastructure", 110), also="reward_flat reward_spike decoupling",
)  # fmt: skip
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = t.held(plan.success)
    plan.success = np.where(t.on() > 0, 0.996, plan.success)
    run = Run(d, plan)
    return lost(run, "engine_failed", d.between(0.4, 0.55) * t.on(_later(t))).history()
