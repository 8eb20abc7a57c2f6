"""Sound runs: they learn noisily, late, in stages or up to a plateau, and are told so noisily."""

from __future__ import annotations

import numpy as np
from blind.draws import Draw, decay, line, noisy
from blind.texts import agent_text, chinese_text, code_text, math_text
from blind.world import Run, plain

from agentrl.health import History
from onset.edits import agent, failing, scaled
from onset.labels import sound
from onset.times import Times


@sound("noisy learning, eight prompts in groups of 4", steps=100)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, prompts=8, group=4)).history()


@sound("noisy learning, four prompts in groups of 16", steps=120)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, prompts=4, group=16)).history()


@sound("noisy learning of an agent, reward of -1 to 1", steps=160)
def _(d: Draw, t: Times) -> History:
    return scaled(Run(d, agent(d, t.steps, prompts=8)), 2.0, -1.0, agent_text)


@sound("learns, then a plateau at 0.7", steps=200)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, success=decay(t.steps, 0.3, d.between(0.66, 0.74), 0.06))
    return Run(d, plan).history()


@sound("learns, then a long plateau, reward of 0 to 10", steps=400)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, success=decay(n, 0.25, d.between(0.6, 0.7), 0.07), group=16, prompts=8)
    return scaled(Run(d, plan), 10.0)


@sound("learns, then a plateau at 0.85 with half of the groups solved", steps=240)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, success=decay(t.steps, 0.5, d.between(0.83, 0.87), 0.1))
    return Run(d, plan).history()


@sound("late learning: level for 70 of 200 steps", steps=200, at=70)
def _(d: Draw, t: Times) -> History:
    low = d.between(0.12, 0.18)
    return Run(d, plain(d, t.steps, success=low + 0.4 * t.ramp(100))).history()


@sound("late learning: level for 150 of 400 steps", steps=400, at=150)
def _(d: Draw, t: Times) -> History:
    low = d.between(0.08, 0.12)
    return Run(d, plain(d, t.steps, success=low + 0.45 * t.ramp(200))).history(code_text)


@sound("rare reward: 3 % to 25 %", steps=300)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, success=line(t.steps, d.between(0.025, 0.035), 0.25), group=16)
    return Run(d, plan).history()


@sound("a short run of 20 steps", steps=20)
def _(d: Draw, t: Times) -> History:
    first = d.between(0.2, 0.3)
    plan = plain(d, t.steps, success=line(t.steps, first, first + 0.15), eval_every=5)
    return Run(d, plan).history(code_text)


@sound("a short run of 30 steps, groups of 4", steps=30)
def _(d: Draw, t: Times) -> History:
    first = d.between(0.3, 0.4)
    plan = plain(d, t.steps, success=line(t.steps, first, first + 0.15), group=4, eval_every=10)
    return Run(d, plan).history()


@sound("a short run of 40 steps with tools", steps=40)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 3.0, success=line(t.steps, 0.2, d.between(0.4, 0.5)), eval_every=10)
    return failing(Run(d, plan), np.full(t.steps, 0.06)).history(agent_text)


@sound("a short run of 25 steps, reward of 0 to 100, no held-out tasks", steps=25)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps, success=line(t.steps, 0.3, 0.45), tasks=0)
    return scaled(Run(d, plan), 100.0)


@sound("harder tasks from a step on, then it learns them", steps=180, at=60)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    plan = plain(d, n, success=line(n, 0.4, 0.75), held_out=line(n, 0.3, 0.55))
    plan.success = plan.success - d.between(0.22, 0.28) * t.on()
    return Run(d, plan).history()


@sound("a curriculum of four stages", steps=320)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    stage = (np.arange(n) % 80) / 80
    plan = plain(d, n, success=0.35 + d.between(0.25, 0.3) * stage, held_out=line(n, 0.2, 0.5))
    return Run(d, plan).history()


@sound("tasks that need more turns and words from a step on", steps=200, at=100)
def _(d: Draw, t: Times) -> History:
    plan = agent(d, t.steps, 3.0 + 2.0 * t.on())
    plan.length = plan.length * (1 + d.between(0.5, 0.7) * t.on())
    plan.held_out = plan.success
    plan.success = plan.success * (1 - 0.2 * t.on())
    return failing(Run(d, plan), np.full(t.steps, 0.05)).history(agent_text)


@sound("easier tasks mixed in from a step on, held-out score goes on", steps=200, at=80)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = plan.success
    plan.success = plan.success + d.between(0.08, 0.12) * t.on()
    return Run(d, plan).history()


@sound("evaluations of 16 tasks every five steps", steps=150)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, tasks=16, eval_every=5)).history()


@sound("evaluations of 25 tasks, reward of -1 to 1", steps=200)
def _(d: Draw, t: Times) -> History:
    return scaled(Run(d, plain(d, t.steps, tasks=25, eval_every=10)), 2.0, -1.0)


@sound("four evaluations of 30 tasks in all", steps=120)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, tasks=30, eval_every=40)).history()


@sound("a bad shuffle: eight steps of harder tasks", steps=160, at=90)
def _(d: Draw, t: Times) -> History:
    plan = plain(d, t.steps)
    plan.held_out = plan.success.copy()
    dip = (t.since() > 0) & (t.since() <= 8)
    plan.success = plan.success - d.between(0.08, 0.12) * dip
    return Run(d, plan).history()


@sound("answers in Chinese, four hundred steps", steps=400)
def _(d: Draw, t: Times) -> History:
    return Run(d, plain(d, t.steps, group=4)).history(chinese_text)


@sound("only reward, score and loss were logged", steps=150)
def _(d: Draw, t: Times) -> History:
    run = Run(d, plain(d, t.steps))
    run.keep("reward", "score", "train/loss")
    run.curves["train/loss"] = noisy(d, np.full(t.steps, 0.05), 0.5)
    return run.history(None)


@sound("a learning rate that decays to nothing", steps=200)
def _(d: Draw, t: Times) -> History:
    n = t.steps
    run = Run(d, plain(d, n, success=decay(n, 0.3, d.between(0.6, 0.7), 0.15)))
    run.curves["train/learning_rate"] = line(n, 2e-6, 0.0)
    return run.history(math_text)
