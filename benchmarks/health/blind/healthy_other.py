"""Sound runs with unusual logs, critics, texts or schedules."""

from __future__ import annotations

import numpy as np

from agentrl.health import History
from blind.draws import Draw, decay, geometric, line, noisy
from blind.labels import sound
from blind.texts import (
    chinese_text,
    choice_text,
    code_text,
    table_text,
)
from blind.world import Run, plain

_CRITIC = {"algorithm.advantage_estimator": "gae", "algorithm.preset": "ppo", "critic.path": "q"}


@sound("a critic that warms up: loss 2 to 0.1, explained variance from below 0", "S4 7.2.3")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n, config=_CRITIC))
    run.curves |= {
        "critic/vf_loss": noisy(d, decay(n, d.between(1.5, 2.5), 0.1, 0.06), 0.25),
        "critic/vf_explained_var": decay(n, -0.4, 0.65, 0.08) + d.rng.normal(0, 0.08, n),
        "critic/values/mean": run.curves["reward"],
        "critic/returns/mean": run.curves["reward"],
    }
    return run.history()


@sound("a critic's loss bumps when the reward jumps, and comes back", "S4 7.2.3")
def _(d: Draw) -> History:
    n = d.steps(1000)
    bump = np.exp(-(((np.arange(n) / n - 0.4) / 0.02) ** 2))
    run = Run(d, plain(d, n, config=_CRITIC))
    run.curves |= {
        "critic/vf_loss": noisy(d, 0.08 + 0.3 * bump, 0.25),
        "critic/vf_explained_var": 0.6 - 0.4 * bump + d.rng.normal(0, 0.06, n),
    }
    return run.history()


@sound(
    "resumed twice: optimizer state is new, the gradient jumps, an evaluation is missing",
    "verl #1322 of PEERS",
)
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n))
    for share in (0.35, 0.7):
        at = int(share * n)
        run.curves["train/grad_norm"][at : at + 2] *= d.between(4, 8)
        run.curves["timing_s/step"][at] *= 6
        for name in list(run.at):
            run.at[name].pop(next((s for s in run.at[name] if s >= at), -1), None)
    return run.history()


@sound("only reward and loss were logged", "a run of another tool")
def _(d: Draw) -> History:
    run = Run(d, plain(d, d.steps(200)))
    run.keep("reward", "train/loss", "score")
    return run.history(None)


@sound("a number of the environment is NaN where nothing of its kind happened", "S3 7")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n))
    run.curves["env/second_try_solved"] = np.where(d.rng.random(n) < 0.3, np.nan, 0.5)
    return run.history()


@sound("30 steps on a laptop: little moves", "configs/quickstart.yaml")
def _(d: Draw) -> History:
    n = d.steps(30)
    first = d.between(0.2, 0.3)
    plan = plain(
        d,
        n,
        prompts=8,
        group=8,
        tasks=54,
        eval_every=n,
        kl=line(n, 1e-4, 0.02),
        success=line(n, first, first + 0.12),
        cap=224,
        length=np.full(n, 60.0),
    )
    return Run(d, plan).history(code_text)


@sound("plateau: 0.8 by step 300 of 1000, and there it stays", "S4 7.1")
def _(d: Draw) -> History:
    n = d.steps(1000)
    return Run(d, plain(d, n, success=decay(n, 0.3, d.between(0.76, 0.82), 0.08))).history()


@sound("GSPO clips 15 % of tokens as it should", "arXiv 2507.18071")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(
        d,
        n,
        clip=d.between(0.13, 0.17),
        config={
            "algorithm.importance_level": "sequence",
            "algorithm.eps_clip_low": 3e-4,
            "algorithm.eps_clip_high": 4e-4,
        },
    )
    return Run(d, plan).history()


@sound("answers are one letter of four", "S4 7.2.2")
def _(d: Draw) -> History:
    n = d.steps(200)
    plan = plain(d, n, length=np.full(n, 8.0), cap=64, entropy=line(n, 0.35, 0.2))
    return Run(d, plan).history(choice_text)


@sound("answers are tables", "own")
def _(d: Draw) -> History:
    return Run(d, plain(d, d.steps(200))).history(table_text)


@sound("answers are Chinese", "own")
def _(d: Draw) -> History:
    return Run(d, plain(d, d.steps(200))).history(chinese_text)


@sound("the first evaluation drops, later ones rise", "own")
def _(d: Draw) -> History:
    n = d.steps(200)
    run = Run(d, plain(d, n))
    first = sorted(run.at["eval/held_out/score"])[1]
    run.put("eval/held_out/score", first, 0.12)
    return run.history()


@sound("a reward model's logits: -2 to 3, score unknown", "OpenRLHF README")
def _(d: Draw) -> History:
    n = d.steps(1000)
    run = Run(d, plain(d, n))
    run.curves["reward"] = decay(n, -2, d.between(2.5, 3.5), 0.25) + d.rng.normal(0, 0.15, n)
    run.curves["reward_std"] = noisy(d, np.full(n, 0.9), 0.05)
    run.curves["frac_reward_zero_std"] = np.zeros(n)
    run.drop("score")
    return run.history()


@sound("reward rises, wobbles by a tenth for fifty steps, rises on", "own")
def _(d: Draw) -> History:
    n = d.steps(200)
    t = np.arange(n) / n
    plan = plain(d, n)
    plan.success = plan.success - d.between(0.08, 0.12) * np.exp(-(((t - 0.5) / 0.1) ** 2))
    return Run(d, plan).history()


@sound("warm-up of the learning rate: nothing moves for 40 of 200 steps", "own")
def _(d: Draw) -> History:
    n = d.steps(200)
    wait = int(0.2 * n)
    plan = plain(d, n)
    plan.success = np.concatenate([np.full(wait, plan.success[0]), plan.success[: n - wait]])
    plan.kl = np.concatenate([geometric(wait, 1e-6, plan.kl[0]), plan.kl[: n - wait]])
    plan.entropy = np.concatenate([np.full(wait, plan.entropy[0]), plan.entropy[: n - wait]])
    return Run(d, plan).history()


@sound("a run of eight steps so far", "own")
def _(d: Draw) -> History:
    n = 8
    return Run(d, plain(d, n, success=line(n, 0.3, 0.34), kl=line(n, 1e-4, 2e-3))).history()
