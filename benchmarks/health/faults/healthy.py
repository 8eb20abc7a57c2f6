"""Healthy synthetic runs: all that looks odd and is not."""

from __future__ import annotations

import math

from faults.synthetic import Draft, Plan, growing, prose


def plain(draft: Draft) -> None:
    """Nothing odd."""


def written(draft: Draft) -> None:
    draft.write(prose)


def no_eval(draft: Draft) -> None:
    draft.evaluate(None)


def ppo(draft: Draft) -> None:
    draft.config["algorithm.advantage_estimator"] = "gae"
    draft.curve("critic/vf_loss", lambda t: 0.3 * math.exp(-2 * t) + 0.03, 0.015, low=0.01)
    draft.curve("critic/vf_explained_var", lambda t: 0.7 * (1 - math.exp(-6 * t)) - 0.1, 0.05)
    kl(draft)


def kl(draft: Draft) -> None:
    draft.curve("kl", lambda t: 0.08 * (1 - math.exp(-4 * t)), 0.005, low=0)


def longer_and_better(draft: Draft) -> None:
    draft.curve("completions/mean_length", lambda t: 300 + 500 * t, 20)
    draft.curve("completions/clipped_ratio", lambda t: 0.05 + 0.2 * t, 0.03, low=0)
    draft.write(growing)


def fewer_turns_and_better(draft: Draft) -> None:
    draft.curve("num_turns/mean", lambda t: 4 - 2 * t, 0.2, low=1)
    draft.curve("tools/call_frequency", lambda t: 3 - 2 * t, 0.2, low=0)


def learns_to_call(draft: Draft) -> None:
    draft.curve("tools/failure_frequency", lambda t: 0.75 * math.exp(-3 * t) + 0.05, 0.04, low=0)
    draft.curve("tools/parse_error_frequency", lambda t: 0.6 * math.exp(-4 * t), 0.03, low=0)


def learns_to_stop(draft: Draft) -> None:
    draft.curve("completions/clipped_ratio", lambda t: 0.75 * math.exp(-3 * t), 0.04, low=0)


def one_spike(draft: Draft) -> None:
    for step in (draft.steps // 4, draft.steps // 2):
        draft.curves["train/grad_norm"][step] = 12.0


def hiccup(draft: Draft) -> None:
    draft.curves["rollout/termination/sandbox_failed"][draft.steps - 3] = 20.0
    draft.curves["rollout/termination/sandbox_failed"][5] = 6.0


def plateau(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.25 + 0.45 * min(1.0, 4 * t), 0.03)
    draft.evaluate(lambda t: 0.22 + 0.4 * min(1.0, 4 * t))


def quick(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.1 + 0.7 / (1 + math.exp(-30 * (t - 0.3))), 0.03)
    draft.evaluate(lambda t: 0.1 + 0.65 / (1 + math.exp(-30 * (t - 0.3))))


def sharper(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 0.8 * math.exp(-1.8 * t), 0.02, low=0.06)


def open_ended(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 0.5 + 0.25 * t, 0.03)


def solved_tasks(draft: Draft) -> None:
    draft.curve("reward", lambda t: min(1.0, 0.5 + t), 0.01, high=1)
    draft.curve("frac_reward_zero_std", lambda t: 0.3 + 0.35 * t, 0.08, low=0, high=1)
    draft.evaluate(lambda t: min(0.97, 0.45 + t), half=0.02)


def behind(draft: Draft) -> None:
    draft.curve("staleness/lag_mean", lambda t: 0.8, 0.1, low=0)
    draft.curve("sampling/sampling_logp_difference/mean", lambda t: 0.045, 0.008, low=0)
    draft.curve("rollout_corr/ess", lambda t: 0.95, 0.01, high=1)
    draft.curve("rollout_corr/ratio_min", lambda t: 0.05, 0.03, low=0.002)
    draft.curve("rollout_corr/ratio_max", lambda t: 15, 8, low=2)


def over_fit_a_little(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.3 + 0.4 * t, 0.03)
    draft.evaluate(lambda t: 0.28 + 0.2 * t)


def penalties(draft: Draft) -> None:
    draft.curve("reward", lambda t: -0.6 + 0.5 * t, 0.05)


def hard_start(draft: Draft) -> None:
    draft.curve("frac_reward_zero_std", lambda t: 0.85 * math.exp(-2 * t), 0.05, low=0, high=1)
    draft.curve("reward", lambda t: 0.03 + 0.3 * t * t, 0.01, low=0)
    draft.evaluate(lambda t: 0.03 + 0.3 * t * t, half=0.03)


def gspo(draft: Draft) -> None:
    draft.config["algorithm.policy_loss"] = "gspo"
    draft.curve("clip_ratio/region_mean", lambda t: 0.18, 0.03)


def judged(draft: Draft) -> None:
    """A judge whose part rises with the score of the environment, and faster."""
    draft.config["reward.functions.style.args.model.url"] = "http://judge/v1"
    draft.curve("rewards/style/mean", lambda t: 0.2 + 0.6 * (1 - math.exp(-5 * t)), 0.03)
    draft.pay_for("style")


def judged_unseen(draft: Draft) -> None:
    judged(draft)
    draft.evaluate(None)


def judge_alone(draft: Draft) -> None:
    """An environment without a verdict: nothing can be held against the judge."""
    draft.config["reward.functions.style.args.model.url"] = "http://judge/v1"
    draft.curves["rewards/style/mean"] = dict(draft.curves["reward"])
    draft.curve("rewards/env/mean", lambda t: 0.0, 0.0)
    draft.evaluate(None)


def ranked(draft: Draft) -> None:
    """Places inside groups have the same mean for ever; the score has stopped rising."""
    draft.config["reward.functions.rank.args.model.url"] = "http://judge/v1"
    draft.curve("rewards/rank/mean", lambda t: 0.5, 1e-9)
    draft.curve("score", lambda t: 0.6, 0.03)
    draft.evaluate(lambda t: 0.55)
    draft.curve("reward", lambda t: 1.1 + 0.05 * t, 0.03)


HEALTHY: Plan = {
    "healthy": ("", {}, plain),
    "healthy, noisy": ("", {"noise": 2.0}, plain),
    "healthy, short": ("", {"steps": 20, "every": 5}, plain),
    "healthy, long": ("", {"steps": 400, "every": 40}, plain),
    "healthy, very noisy and short": ("", {"steps": 30, "noise": 2.5}, plain),
    "healthy, with rollouts": ("", {}, written),
    "healthy, long with rollouts": ("", {"steps": 200, "every": 20}, written),
    "no evaluation": ("", {}, no_eval),
    "no evaluation, noisy": ("", {"noise": 2.0, "steps": 120}, no_eval),
    "ppo": ("", {}, ppo),
    "ppo, noisy": ("", {"noise": 2.0, "steps": 150}, ppo),
    "penalty for leaving the reference": ("", {"steps": 120}, kl),
    "longer and better": ("", {}, longer_and_better),
    "fewer turns and better": ("", {}, fewer_turns_and_better),
    "learns to call tools": ("", {}, learns_to_call),
    "learns to stop": ("", {}, learns_to_stop),
    "two gradient spikes": ("", {"steps": 120}, one_spike),
    "a hiccup of the sandboxes": ("", {}, hiccup),
    "plateau": ("", {"steps": 200, "every": 20}, plateau),
    "learns quickly": ("", {"steps": 100}, quick),
    "sharper and better": ("", {}, sharper),
    "entropy opens a little": ("", {}, open_ended),
    "tasks get solved": ("", {"steps": 60}, solved_tasks),
    "runs ahead": ("", {"steps": 100}, behind),
    "held-out follows at half the pace": ("", {"steps": 100}, over_fit_a_little),
    "rewards below zero": ("", {}, penalties),
    "hard tasks, slow start": ("", {"steps": 120}, hard_start),
    "gspo clips a sixth": ("", {}, gspo),
    "a judge that agrees": ("", {"steps": 100}, judged),
    "a judge that agrees, noisy": ("", {"steps": 60, "noise": 2.0}, judged),
    "a judge that agrees, no evaluation": ("", {"steps": 100}, judged_unseen),
    "a judge alone": ("", {"steps": 80}, judge_alone),
    "a ranking judge": ("", {"steps": 100}, ranked),
}
"""None of these may be called ill."""
