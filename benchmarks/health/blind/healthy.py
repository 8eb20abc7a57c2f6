"""Sound runs that look suspicious: each does what some fault does, for a good reason."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Draw, decay, geometric, line, noisy, shift
from blind.labels import sound
from blind.texts import (
    agent_text,
    code_text,
)
from blind.world import Run, plain


@sound("entropy falls fast while the model learns the task, then holds", "S4 7.1")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, entropy=decay(n, d.between(0.9, 1.2), 0.28, 0.04))).history()


@sound("entropy loses 73 % over the run, held-out score rises", "arXiv 2505.22617")
def _(d: Draw) -> History:
    n = d.steps(200)
    first = d.between(0.55, 0.75)
    return Run(d, plain(d, n, entropy=geometric(n, first, first * 0.27))).history()


@sound("an instruct model at 0.12 nats from the start", "arXiv 2505.22312")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, entropy=line(n, d.between(0.11, 0.14), 0.09))).history()


@sound("entropy rises to 0.8 and settles under clip-higher", "rllm #116; arXiv 2503.14476")
def _(d: Draw) -> History:
    n = d.steps(1000)
    return Run(d, plain(d, n, entropy=decay(n, 0.4, d.between(0.75, 0.85), 0.2))).history()


@sound("answers grow from 500 to 4000 tokens with reward and held-out score", "arXiv 2501.12948")
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(d, n, cap=16384, length=line(n, 500, d.between(3500, 4500)))
    return Run(d, plan).history()


@sound("answers shrink from 5500 to 3500 tokens under a cap of 8192", "DeepScaleR notes")
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(d, n, cap=8192, length=decay(n, d.between(5200, 5800), 3300, 0.2))
    return Run(d, plan).history()


@sound("a quarter cut off late, held-out score still rises", "DeepScaleR notes")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, cap=4096, length=line(n, 1800, d.between(2900, 3200)))
    return Run(d, plan).history()


@sound(
    "harder tasks from the middle: reward drops and recovers, held-out score goes on", "S4 7.2.5"
)
def _(d: Draw) -> History:
    n = d.steps(1000)
    easy, hard = (
        decay(n, 0.4, 0.75, 0.15),
        0.42 + 0.25 * np.maximum(0, np.arange(n) / n - 0.5) / 0.5,
    )
    success = np.where(np.arange(n) < n / 2, easy, hard)
    return Run(d, plain(d, n, success=success, held_out=decay(n, 0.3, 0.6, 0.4))).history()


@sound("20 held-out tasks: the score jumps about", "S4 7.3")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, tasks=20, eval_every=10)).history()


@sound("LoRA at 1e-4: KL of 0.4, entropy falls by half", "TRL docs lora_without_regret")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        kl=decay(n, 0.001, d.between(0.3, 0.5), 0.2),
        grad=0.06,
        clip=0.03,
        config={"train.lora.rank": 32, "train.learning_rate": 1e-4},
    )
    return Run(d, plan).history()


@sound("KL of 0.0005 while the reward rises", "TRL #3452")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, kl=line(n, 2e-4, d.between(5e-4, 7e-4)))).history()


@sound("one turn, no tools, code that must open alike", "configs/quickstart.yaml")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, cap=224, length=line(n, 60, 75))
    return Run(d, plan).history(code_text)


@sound("sparse reward: 2 % to 20 %, most groups empty at first", "SimpleVLA-RL #23")
def _(d: Draw) -> History:
    n = d.steps(1000)
    plan = plain(d, n, success=line(n, d.between(0.015, 0.025), d.between(0.18, 0.24)))
    return Run(d, plan).history()


@sound("four steps off-policy, corrected by TIS", "arXiv 2512.06547")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        gap=d.between(0.05, 0.08),
        clip=0.04,
        config={
            "algorithm.is_correction_type": "tis",
            "algorithm.is_correction_threshold": [0.0, 2.0],
            "schedule.staleness_threshold": 4.0,
        },
    )
    run = Run(d, plan)
    run.curves |= {
        "staleness/lag_mean": noisy(d, np.full(n, 2.5), 0.1),
        "staleness/lag_max": np.full(n, 4.0),
        "is_correction/clamped_mean": noisy(d, np.full(n, 0.01), 0.2),
        "sampling/importance_sampling_ratio/max": np.full(n, 2.0),
    }
    return run.history()


@sound("four prompts in groups of 4: the reward is mostly noise", "S4 7.4")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, prompts=4, group=4)).history()


@sound("the answer format is learned within fifteen steps, held-out score too", "open-r1 #255")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, success=shift(n, 0.08, d.between(0.5, 0.6), 0.05, 0.015) + line(n, 0, 0.1))
    return Run(d, plan).history()


@sound("nearly solved: half of the groups are all right", "S4 7.1")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, success=decay(n, 0.6, d.between(0.88, 0.91), 0.3))
    return Run(d, plan).history()


@sound("an agent needs 3.5 turns instead of 6, score rises", "SWE agents learn to be brief")
def _(d: Draw) -> History:
    n = d.steps(200)
    return Run(d, plain(d, n, turns=line(n, 6, d.between(3.2, 3.8)))).history(agent_text)


@sound("tool errors fall from 0.45 to 0.08 as the tools are learned", "multimodal-search-r1 #19")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n, turns=np.full(n, 4.0)))
    run.curves["tools/failure_frequency"] = noisy(d, decay(n, d.between(0.4, 0.5), 0.07, 0.12), 0.1)
    return run.history(agent_text)


@sound("a quarter of tool calls fail all along: tests that are red", "SWE tasks")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n, turns=np.full(n, 5.0)))
    run.curves["tools/failure_frequency"] = noisy(d, np.full(n, d.between(0.22, 0.28)), 0.08)
    return run.history(agent_text)


@sound("one step loses a third of its rollouts, and no other", "PEERS: retries")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n))
    lost = np.zeros(n)
    lost[n // 2] = round(d.between(0.28, 0.36) * 128)
    run.curves |= {"rollout/dropped": lost, "rollout/termination/engine_failed": lost}
    return run.history()


@sound("gradient norms of 5 to 8 in the beginning, one spike, nothing follows", "S4 7.3")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n))
    run.curves["train/grad_norm"] = noisy(d, decay(n, d.between(5, 8), 0.5, 0.08), 0.2)
    run.curves["train/grad_norm"][int(0.6 * n)] = d.between(15, 25)
    return run.history()


@sound("the reference is reset: KL saws between 0 and 0.3", "arXiv 2505.24864")
def _(d: Draw) -> History:
    n = d.steps(1000)
    period = n // 5
    kl = 0.002 + d.between(0.25, 0.35) * (np.arange(n) % period) / period
    return Run(
        d, plain(d, n, kl=kl, config={"algorithm.reference_update.every_steps": period})
    ).history()
