"""Sound runs whose other numbers move: lengths, entropy, KL, and glitches that do no harm."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, decay, geometric, line, noisy
from blind.texts import agent_text, math_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import JUDGE, agent, apart, failing, lost, paid, scaled, valued
from onset.labels import sound
from onset.times import Times


@sound("length grows with the score, far from the cap", steps=200)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=8192, length=line(t.steps, 350, d.between(1100, 1400)))
    return Run(d, plan).history()


@sound("length grows fivefold with the score", steps=400)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, cap=16384, length=geometric(n, 400, d.between(1900, 2300)))
    plan.success = line(n, 0.25, 0.65)
    return Run(d, plan).history()


@sound("length grows with the score until three percent are cut off", steps=200)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, cap=1024, length=line(t.steps, 350, d.between(520, 580)))
    return Run(d, plan).history()


@sound("entropy falls slowly from 0.8 to 0.3", steps=300)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, entropy=line(t.steps, d.between(0.75, 0.85), 0.3))).history()


@sound("entropy falls slowly from 1.2 to 0.25, groups of 16", steps=400)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, entropy=geometric(t.steps, d.between(1.1, 1.3), 0.25), group=16)
    plan.prompts = 8
    return Run(d, plan).history()


@sound("entropy rises from 0.4 to 0.65", steps=250)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, entropy=line(t.steps, 0.4, d.between(0.6, 0.7)))).history()


@sound("one step loses two thirds of its rollouts", steps=120, at=50)
def _(d: Draw, t: Times) -> History:
    run = Run(d, agent(d, t.steps))
    return lost(run, "engine_failed", d.between(0.6, 0.7) * (t.since() == 1)).history(agent_text)


@sound("one step in which all tools fail", steps=120, at=60)
def _(d: Draw, t: Times) -> History:
    one = t.since() == 1
    plan = agent(d, t.steps)
    plan.held_out = plan.success.copy()
    plan.success = plan.success * (1 - 0.8 * one)
    return failing(Run(d, plan), 0.04 + d.between(0.85, 0.95) * one).history(agent_text)


@sound("one step with a gradient of twelve", steps=150, at=70)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps))
    run.curves["train/grad_norm"] += d.between(10, 14) * (t.since() == 1)
    return run.history()


@sound("one step with a KL of half a nat", steps=140, at=80)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.kl = plan.kl + d.between(0.4, 0.6) * (t.since() == 1)
    return Run(d, plan).history()


@sound("one step sampled with old weights", steps=160, at=100)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps))
    return apart(run, 0.012 + d.between(0.2, 0.3) * (t.since() == 1)).history()


@sound("one step of empty groups: a batch of easy tasks", steps=120, at=60)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = plan.success.copy()
    plan.success = np.where(t.since() == 1, 0.99, plan.success)
    return Run(d, plan).history()


@sound("one step takes ten times as long", steps=100, at=40)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps))
    run.curves["timing_s/step"] = run.curves["timing_s/step"] * (1 + 9.0 * (t.since() == 1))
    return run.history()


@sound("two percent of rollouts are lost all along", steps=200)
def _(d: Draw, t: Times) -> History:
    run = Run(d, agent(d, t.steps))
    return lost(run, "sandbox_failed", np.full(t.steps, d.between(0.015, 0.025))).history(
        agent_text
    )


@sound("KL grows to 0.25 and stays while the score rises", steps=250)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, kl=decay(t.steps, 0.001, d.between(0.2, 0.3), 0.2))
    return Run(d, plan).history()


@sound("tool errors fall as the tools are learned", steps=150)
def _(d: Draw, t: Times) -> History:
    share = decay(t.steps, d.between(0.3, 0.4), 0.05, 0.15)
    return failing(Run(d, agent(d, t.steps)), share).history(agent_text)


@sound("a fifth of tool calls fail all along", steps=200)
def _(d: Draw, t: Times) -> History:
    share = np.full(t.steps, d.between(0.17, 0.22))
    return failing(Run(d, agent(d, t.steps, 5.0)), share).history(agent_text)


@sound("turns fall from 6 to 4 as the score rises", steps=200)
def _(d: Draw, t: Times) -> History:
    run = Run(d, agent(d, t.steps, line(t.steps, 6.0, d.between(3.8, 4.3))))
    return failing(run, np.full(t.steps, 0.05)).history(agent_text)


@sound("turns rise from 2 to 5 with the score", steps=240)
def _(d: Draw, t: Times) -> History:
    run = Run(d, agent(d, t.steps, line(t.steps, 2.0, d.between(4.5, 5.5))))
    return failing(run, np.full(t.steps, 0.05)).history(agent_text)


@sound("a clip that touches few rewards, reward of -2 to 2", steps=160)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    run = Run(d, plain(d, n, config={"reward.clip": [-5.0, 5.0]}))
    run.curves |= {
        "reward_shaping/clip/at_bound": np.clip(d.rng.normal(0.04, 0.01, n), 0, 1),
        "reward_shaping/clip/share": np.clip(d.rng.normal(0.04, 0.01, n), 0, 1),
        "reward_shaping/clip/mean": d.rng.normal(-0.01, 0.003, n),
    }
    return scaled(run, 4.0, -2.0)


@sound("a critic that warms up", steps=200)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    loss = decay(n, d.between(1.0, 2.0), 0.1, 0.05)
    return valued(d, plain(d, n), loss, decay(n, -0.5, 0.65, 0.08)).history()


@sound("a critic's loss doubles when tasks change, and comes back", steps=240, at=120)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    new = np.where(t.since() > 0, 0.5 ** (t.since() / 12), 0.0)
    plan = plain(d, n, success=line(n, 0.35, 0.75), held_out=line(n, 0.3, 0.5))
    plan.success = plan.success - 0.15 * t.on()
    return valued(d, plan, 0.1 + 0.15 * new, 0.6 - 0.35 * new).history()


@sound("judge and score rise together", steps=180)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, config=dict(JUDGE))
    judge = 0.15 + 0.8 * plan.success
    return paid(Run(d, plan), "judge", judge, 0.12, score_weight=0.0)


@sound("a style part saturates early, the score rises on", steps=200)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    style = decay(t.steps, 0.1, d.between(0.35, 0.45), 0.05)
    return paid(Run(d, plan), "style", style, 0.1, score_weight=1.0)


@sound("one step of staleness, gap of 0.03", steps=200)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    run = Run(d, plain(d, n, gap=d.between(0.025, 0.035)))
    run.curves |= {"staleness/lag_mean": np.full(n, 0.8), "staleness/lag_max": np.ones(n)}
    return run.history()


@sound("the gap wanders between 0.01 and 0.03", steps=300)
def _(d: Draw, t: Times) -> History:
    wave = np.sin(np.arange(t.steps) / d.between(15, 25))
    return apart(Run(d, plain(d, t.steps)), 0.02 + 0.008 * wave).history()


@sound("gradients fall from 4 to 0.4, noisily", steps=160)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps))
    run.curves["train/grad_norm"] = noisy(d, decay(t.steps, d.between(3, 5), 0.4, 0.12), 0.35)
    return run.history(math_text)
