"""Faults that the reward shows: decoupling, spikes, falls, no movement."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Draw, decay, line, shift
from blind.labels import ill
from blind.world import Run, plain


@ill(
    "decoupling",
    "loophole found at step 90 of 200: train 0.9, held-out sinks",
    "alignmentforum R5MdWGKsuvdPwGFBG",
    "reward_spike",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.4, 0.5)
    plan = plain(
        d,
        n,
        success=shift(n, 0.32, d.between(0.85, 0.95), at, 0.05),
        held_out=shift(n, 0.36, d.between(0.15, 0.22), at, 0.06),
    )
    return Run(d, plan).history()


@ill("decoupling", "memorises few tasks over 1000 steps, held-out flat", "S4 7.1", "empty_gradient")
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(
        d,
        n,
        success=decay(n, 0.35, d.between(0.88, 0.94), 0.3),
        held_out=np.full(n, d.between(0.35, 0.42)),
    )
    return Run(d, plan).history()


@ill(
    "decoupling",
    "54 held-out tasks every 25 steps, falls by half in the noise",
    "S4 7.1",
    "reward_spike",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        tasks=54,
        eval_every=25,
        success=line(n, 0.35, 0.75),
        held_out=line(n, 0.5, d.between(0.2, 0.26)),
        group=4,
    )
    return Run(d, plan).history()


@ill("decoupling", "four evaluations in 30 steps", "arXiv 2603.07084", "reward_spike")
def _(d: Draw) -> History:
    n = d.steps(30)
    plan = plain(
        d,
        n,
        eval_every=10,
        success=line(n, 0.2, 0.85),
        held_out=line(n, 0.34, d.between(0.08, 0.12)),
    )
    return Run(d, plan).history()


@ill("reward_spike", "0.15 to 0.95 in eight steps, no evaluation", "S4 7.1", "empty_gradient")
def _(d: Draw) -> History:
    n = d.steps(200)
    at = d.between(0.4, 0.6)
    plan = plain(d, n, tasks=0, success=shift(n, 0.15, d.between(0.92, 0.97), at, 1.2 / n))
    return Run(d, plan).history()


@ill(
    "reward_spike",
    "at step 500 of 1000, held-out tasks know nothing of it",
    "S4 7.1",
    "decoupling empty_gradient",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(
        d, n, success=shift(n, 0.25, d.between(0.85, 0.95), 0.5, 2 / n), held_out=np.full(n, 0.26)
    )
    return Run(d, plan).history()


@ill(
    "reward_fall",
    "at step 160 of 200, to nothing",
    "Search-R1 #88; ZeroSearch #23",
    "empty_gradient",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n)
    plan.success = plan.success * shift(n, 1, d.between(0.02, 0.05), d.between(0.76, 0.84), 0.01)
    return Run(d, plan).history()


@ill("reward_fall", "slow: 0.6 to 0.25 over 1000 steps", "TRL #1098")
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(
        d, n, success=np.minimum(decay(n, 0.35, 0.65, 0.05), line(n, 0.72, d.between(0.2, 0.28)))
    )
    return Run(d, plan).history()


@ill(
    "reward_fall",
    "falls and recovers twice, the third time it stays down",
    "DanceGRPO #55",
    "empty_gradient grad_norm",
)
def _(d: Draw) -> History:
    n = d.steps(300)
    t = np.arange(n) / n
    down = sum(np.exp(-(((t - at) / 0.02) ** 2)) for at in (0.3, 0.55))
    plan = plain(d, n)
    plan.success = plan.success * np.clip(1 - 0.9 * down, 0.05, 1) * shift(n, 1, 0.05, 0.82, 0.01)
    return Run(d, plan).history()


@ill("reward_fall", "only the last ten of 200 steps, small batch", "AgentR1 #8", "empty_gradient")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, prompts=8, group=4, tasks=0)
    plan.success[-10:] = d.between(0.01, 0.03)
    return Run(d, plan).history()


@ill(
    "reward_flat",
    "zero from the first step: a broken reward",
    "S4 7.1; open-r1 #255",
    "empty_gradient",
)
def _(d: Draw) -> History:
    n = d.steps(100)
    return Run(d, plain(d, n, success=np.zeros(n), kl=np.full(n, 0.01))).history()


@ill("reward_flat", "0.3 for 200 steps though the policy moves", "mlx-examples #1233")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, success=np.full(n, d.between(0.25, 0.35)))).history()


@ill(
    "reward_flat",
    "0.12 for 1000 steps, groups of 4, no evaluation",
    "open-r1 #436",
    "empty_gradient",
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(d, n, success=np.full(n, d.between(0.1, 0.14)), prompts=8, group=4, tasks=0)
    return Run(d, plan).history(None)
