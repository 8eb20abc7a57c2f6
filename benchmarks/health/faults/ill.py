"""Synthetic runs with one fault each, in the ways in which each shows itself."""

from __future__ import annotations

import math

from faults.synthetic import Draft, Plan, growing, looping, noise_text, prose, template


def entropy_gone(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 1.2 * math.exp(-9 * t), 0.01, low=0.005)
    draft.curve("reward", lambda t: 0.3 + 0.15 * min(1, 4 * t), 0.02)
    draft.evaluate(lambda t: 0.3)


def entropy_plummet(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 2.0 if t < 0.3 else 0.12, 0.02, low=0.06)
    draft.curve("reward", lambda t: 0.4, 0.03)
    draft.evaluate(None)


def entropy_up(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 0.8 + (5 * (t - 0.5) if t > 0.5 else 0), 0.05)
    draft.curve("reward", lambda t: 0.5 - 0.4 * max(0, t - 0.5), 0.03)
    draft.evaluate(lambda t: 0.4 - 0.3 * max(0, t - 0.5))


def entropy_pinned(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 1 + 9 / (1 + math.exp(-20 * (t - 0.4))), 0.1)
    draft.curve("reward", lambda t: 0.3 * math.exp(-8 * t), 0.01, low=0)


def longer_for_nothing(draft: Draft) -> None:
    draft.curve("completions/mean_length", lambda t: 250 + 500 * t, 15)
    draft.curve("completions/clipped_ratio", lambda t: 0.05 + 0.3 * t, 0.03, low=0)
    draft.evaluate(lambda t: 0.3)
    draft.write(growing)
    draft.pay_for_length()


def into_the_limit(draft: Draft) -> None:
    draft.curve("completions/mean_length", lambda t: 1024 / (1 + math.exp(-8 * (t - 0.4))), 20)
    draft.curve("completions/clipped_ratio", lambda t: 0.95 / (1 + math.exp(-9 * (t - 0.5))), 0.03,
                low=0, high=1)  # fmt: skip
    draft.evaluate(None)


def held_out_falls(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.3 + 0.5 * t, 0.03)
    draft.evaluate(lambda t: 0.4 - 0.2 * t)


def held_out_flat(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.3 + 0.6 * t, 0.03)
    draft.curves["score"] = dict(draft.curves["reward"])
    draft.evaluate(lambda t: 0.35, half=0.04)


def kl_runs_away(draft: Draft) -> None:
    draft.curve("kl", lambda t: 0.05 * math.exp(5.2 * t), 0.02, low=0)


def kl_at_once(draft: Draft) -> None:
    draft.curve("kl", lambda t: min(6.0, 12 * t), 0.2, low=0)


def does_not_move(draft: Draft) -> None:
    draft.curve("kl", lambda t: 0.0008, 0.0002, low=0)
    draft.curve("reward", lambda t: 0.3, 0.03)
    draft.evaluate(lambda t: 0.3)


def clipped(draft: Draft) -> None:
    draft.curve("clip_ratio/region_mean", lambda t: 0.1 + 0.4 * t, 0.03, low=0)


def clipped_some(draft: Draft) -> None:
    draft.curve("clip_ratio/region_mean", lambda t: 0.2, 0.02, low=0)


def spikes(draft: Draft) -> None:
    for step in range(draft.steps // 2, draft.steps, 6):
        draft.curves["train/grad_norm"][step] = draft.rng.uniform(15, 80)


def always_clipped(draft: Draft) -> None:
    draft.curve("train/grad_norm", lambda t: 5 + 60 * t, 4, low=1)


def nan_loss(draft: Draft) -> None:
    for step in range(draft.steps - 10, draft.steps + 1):
        draft.curves["train/loss"][step] = math.nan


def critic_grows(draft: Draft) -> None:
    draft.curve("critic/vf_loss", lambda t: 0.1 + (8 * (t - 0.5) if t > 0.5 else 0), 0.01, low=0.05)
    draft.curve("critic/vf_explained_var", lambda t: 0.5 - 2 * max(0, t - 0.5), 0.05)


def critic_misleads(draft: Draft) -> None:
    draft.curve("critic/vf_loss", lambda t: 2.0, 0.3, low=0.5)
    draft.curve("critic/vf_explained_var", lambda t: -0.8, 0.15)


def critic_swings(draft: Draft) -> None:
    draft.curve("critic/vf_explained_var", lambda t: 0.0, 0.1)
    draft.curves["critic/vf_loss"] = {
        step: 0.1 * math.exp(draft.rng.gauss(0, 2)) for step in range(1, draft.steps + 1)
    }


def apart(draft: Draft) -> None:
    draft.curve("sampling/sampling_logp_difference/mean", lambda t: 0.02 + 1.6 * t, 0.05, low=0)
    draft.curve("rollout_corr/ess", lambda t: 1 - 0.8 * t, 0.02)
    draft.curve("staleness/lag_mean", lambda t: 4.0, 0.3)


def apart_some(draft: Draft) -> None:
    draft.curve("sampling/sampling_logp_difference/mean", lambda t: 0.25, 0.03, low=0)


def weights_lost(draft: Draft) -> None:
    draft.curve("rollout_corr/ess", lambda t: 0.3, 0.05, low=0.05)
    draft.curve("rollout_corr/ratio_min", lambda t: 1e-6, 0, low=1e-7)
    draft.curve("rollout_corr/ratio_max", lambda t: 1e5, 0)
    draft.curve("sampling/sampling_logp_difference/mean", lambda t: 0.08, 0.01, low=0)


def all_fail(draft: Draft) -> None:
    draft.curve("frac_reward_zero_std", lambda t: 0.98, 0.02, low=0, high=1)
    draft.curve("reward", lambda t: 0.015, 0.006, low=0)
    draft.curves["score"] = dict(draft.curves["reward"])
    draft.evaluate(None)


def all_succeed(draft: Draft) -> None:
    draft.curve("frac_reward_zero_std", lambda t: min(1.0, 0.4 + t), 0.02, low=0, high=1)
    draft.curve("reward", lambda t: min(0.98, 0.6 + 0.5 * t), 0.01, high=1)
    draft.evaluate(lambda t: 0.45 + 0.2 * t)


def never_pays(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.0, 0.0)
    draft.curve("frac_reward_zero_std", lambda t: 1.0, 0.0)
    draft.evaluate(lambda t: 0.0, half=0.01)


def falls(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.3 + 0.8 * t if t < 0.5 else 0.7 - 1.0 * (t - 0.5), 0.03)
    draft.evaluate(lambda t: 0.3 + 0.6 * t if t < 0.5 else 0.6 - 0.9 * (t - 0.5))


def on_a_bound(draft: Draft) -> None:
    draft.curve("reward_shaping/clip/at_bound", lambda t: 0.95, 0.02, high=1)
    draft.curve("reward_shaping/clip/share", lambda t: 0.9, 0.02, high=1)


def collapses_at_once(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.5 if t < 0.4 else 0.05, 0.03, low=0)
    draft.evaluate(None)


def jumps(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.2 if t < 0.6 else 0.95, 0.03)
    draft.evaluate(lambda t: 0.2)


def storm(draft: Draft) -> None:
    draft.curve("tools/failure_frequency", lambda t: 0.1 + 0.8 * t, 0.04, low=0, high=1)


def dead_tool(draft: Draft) -> None:
    draft.curve("tools/failure_frequency", lambda t: 0.35, 0.04, low=0)
    draft.curve("tools/by_name/search/error", lambda t: 20, 2, low=1)
    draft.curve("tools/by_name/python/ok", lambda t: 40, 4, low=1)


def unreadable(draft: Draft) -> None:
    draft.curve("tools/parse_error_frequency", lambda t: 0.1 + 0.7 * t, 0.04, low=0, high=1)


def sandboxes_fail(draft: Draft) -> None:
    draft.curve("rollout/termination/sandbox_failed", lambda t: 20 * t, 1, low=0)


def grader_fails(draft: Draft) -> None:
    draft.curve("rollout/termination/grader_crashed", lambda t: 18, 3, low=0)


def gives_up(draft: Draft) -> None:
    draft.curve("num_turns/mean", lambda t: 4 - 2.9 * t, 0.15, low=1)
    draft.curve("tools/call_frequency", lambda t: 3 - 2.95 * t, 0.15, low=0)
    draft.curve("reward", lambda t: 0.35, 0.02)
    draft.evaluate(lambda t: 0.33)


def cut_off(draft: Draft) -> None:
    draft.curve("completions/clipped_ratio", lambda t: 0.85, 0.03, high=1)


def one_answer(draft: Draft) -> None:
    draft.curve("reward", lambda t: 0.4, 0.02)
    draft.evaluate(lambda t: 0.3)
    draft.write(template)


def gibberish(draft: Draft) -> None:
    draft.write(noise_text)


def gibberish_by_curves(draft: Draft) -> None:
    draft.curve("entropy", lambda t: 0.8 + 1.0 * t, 0.03)
    draft.curve("kl", lambda t: 0.02 + 1.5 * t * t, 0.01, low=0)
    draft.curve("reward", lambda t: 0.3 + 0.6 * t, 0.03)
    draft.evaluate(lambda t: 0.3, half=0.06)


def loops(draft: Draft) -> None:
    draft.write(looping)


def right_tail(draft: Draft) -> None:
    draft.evaluate(lambda t: 0.3)
    draft.write(
        prose,
        lambda t: draft.rng.gauss(0.5, 0.1) if t < 0.5 else math.exp(draft.rng.gauss(0, 1.3)),
    )


def judged(draft: Draft, weight: float = 1.0) -> None:
    """A judge's part of the reward that rises, whatever else happens."""
    draft.config["reward.functions.style.args.model.url"] = "http://judge/v1"
    draft.config["reward.functions.style.weight"] = weight
    draft.curve("rewards/style/mean", lambda t: 0.35 + 0.4 * (1 - math.exp(-3 * t)), 0.03)


def judge_is_pleased(draft: Draft) -> None:
    judged(draft)
    draft.curve("score", lambda t: 0.3, 0.03)
    draft.evaluate(lambda t: 0.3, half=0.03)
    draft.pay_for("style")


def judge_is_pleased_unseen(draft: Draft) -> None:
    """No evaluation, and the environment's own score falls."""
    judged(draft)
    draft.curve("score", lambda t: 0.45 - 0.25 * t, 0.03)
    draft.evaluate(None)
    draft.pay_for("style")


def reward_model_is_pleased(draft: Draft) -> None:
    """A reward model on a scale of its own; the environment gives a reward and no score."""
    draft.config["reward.models.taste.path"] = ["rm"]
    draft.curve("rewards/taste/mean", lambda t: -0.5 + 3 * t, 0.2)
    draft.curve("rewards/env/mean", lambda t: 0.3, 0.02)
    draft.evaluate(None)
    env, taste = (draft.curves[f"rewards/{name}/mean"] for name in ("env", "taste"))
    draft.curves["reward"] = {step: env[step] + taste[step] for step in env}
    draft.curves["score"] = dict(draft.curves["reward"])


def paid_beside_the_task(draft: Draft) -> None:
    """A part for length rises; the environment's own score falls, and is logged beside it."""
    draft.config["reward.functions.length.target"] = ["rewards.py:length"]
    draft.curve("score", lambda t: 0.31 - 0.16 * t, 0.03)
    draft.curve("rewards/length/mean", lambda t: 0.31 + 0.54 * t, 0.03)
    draft.evaluate(None)
    draft.pay_for("length")


_HACK = "decoupling"

ILL: Plan = {
    "entropy goes to zero": ("entropy_collapse", {}, entropy_gone),
    "entropy goes to zero, noisy": ("entropy_collapse", {"noise": 2, "steps": 120}, entropy_gone),
    "entropy plummets": ("entropy_collapse", {"steps": 60}, entropy_plummet),
    "entropy climbs": ("entropy_explosion", {}, entropy_up),
    "entropy at its ceiling": ("entropy_explosion", {"steps": 60}, entropy_pinned),
    "length pays": (f"length_hacking {_HACK}", {}, longer_for_nothing),
    "length pays, noisy": (f"length_hacking {_HACK}", {"noise": 2}, longer_for_nothing),
    "length into the limit": ("length_hacking", {"steps": 120}, into_the_limit),
    "length into the limit, noisy": ("length_hacking", {"noise": 2}, into_the_limit),
    "held-out falls": (_HACK, {"steps": 100}, held_out_falls),
    "held-out falls, short": (_HACK, {"steps": 40}, held_out_falls),
    "held-out stays": (_HACK, {"steps": 100}, held_out_flat),
    "held-out stays, noisy": (_HACK, {"steps": 200, "noise": 2}, held_out_flat),
    "kl runs away": ("kl_too_large", {"steps": 120}, kl_runs_away),
    "kl too large at once": ("kl_too_large", {"steps": 60}, kl_at_once),
    "kl stays at nothing": ("kl_too_small reward_flat", {"steps": 100}, does_not_move),
    "clipping grows": ("clip_fraction", {}, clipped),
    "clipping above healthy": ("clip_fraction", {}, clipped_some),
    "gradients spike": ("grad_norm", {}, spikes),
    "gradients always clipped": ("grad_norm", {}, always_clipped),
    "loss is not a number": ("not_finite", {}, nan_loss),
    "value loss grows": ("value_divergence", {}, critic_grows),
    "critic misleads": ("value_divergence", {}, critic_misleads),
    "value loss swings": ("value_divergence", {"steps": 60}, critic_swings),
    "sampler far behind": ("sampler_learner_gap", {}, apart),
    "sampler off by a quarter nat": ("sampler_learner_gap", {"steps": 40}, apart_some),
    "importance weights collapse": ("sampler_learner_gap", {}, weights_lost),
    "all rollouts fail": ("empty_gradient reward_flat", {}, all_fail),
    "all rollouts succeed": ("empty_gradient", {}, all_succeed),
    "reward is never paid": ("reward_flat empty_gradient", {"steps": 30}, never_pays),
    "reward falls": ("reward_fall", {"steps": 120}, falls),
    "reward collapses": ("reward_fall", {"steps": 60, "noise": 2}, collapses_at_once),
    "rewards on a bound": ("reward_clipped", {"steps": 20}, on_a_bound),
    "judge is pleased": ("judge_hacking", {"steps": 100}, judge_is_pleased),
    "judge is pleased, noisy": ("judge_hacking", {"noise": 2, "steps": 200}, judge_is_pleased),
    "judge is pleased, unseen": ("judge_hacking", {"steps": 60}, judge_is_pleased_unseen),
    "reward model is pleased": ("judge_hacking", {"steps": 80}, reward_model_is_pleased),
    "reward is paid beside the task": ("score_falls", {}, paid_beside_the_task),
    "reward is paid beside the task, noisy": (
        "score_falls", {"noise": 2, "steps": 120}, paid_beside_the_task
    ),
    "reward jumps": (f"reward_spike {_HACK}", {"steps": 100}, jumps),
    "tools fail more and more": ("tool_errors", {}, storm),
    "one dead tool": ("tool_errors", {"steps": 30}, dead_tool),
    "calls become unreadable": ("tool_errors", {}, unreadable),
    "sandboxes fail more and more": ("infrastructure", {}, sandboxes_fail),
    "a grader that crashes": ("infrastructure", {"steps": 40}, grader_fails),
    "agent gives up": ("turns_collapse", {}, gives_up),
    "agent gives up, noisy": ("turns_collapse", {"noise": 2, "steps": 150}, gives_up),
    "limit too low": ("truncation", {}, cut_off),
    "one answer for all": ("pattern_collapse", {}, one_answer),
    "one answer for all, long": ("pattern_collapse", {"steps": 200, "every": 20}, one_answer),
    "text becomes gibberish": ("gibberish", {}, gibberish),
    "gibberish seen by its curves": (f"gibberish {_HACK}", {}, gibberish_by_curves),
    "text goes in circles": ("repetition", {}, loops),
    "rewards with a right tail": ("pattern_collapse", {}, right_tail),
}  # fmt: skip
"""Each of these has to be named."""
