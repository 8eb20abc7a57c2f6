"""The number that each detector fires on, and which way each lever on it has to push."""

from __future__ import annotations

from dataclasses import dataclass

LATE = ("serving.engine=vllm", "schedule.staleness_threshold=1.0", "schedule.max_version_lag=2")
BEHIND = (
    "serving.engine=vllm", "schedule.staleness_threshold=1.0", "rollout.top_p=0.9",
    "schedule.trigger_parameter_sync_step=4",
)  # fmt: skip
PULLED = (
    "algorithm.preset=grpo", "algorithm.kl_coef=0.05", "train.epochs_per_batch=4",
    "train.minibatches=2", "train.max_grad_norm=5.0", "reward.overlong.buffer_len=9",
)  # fmt: skip
PPO = ("algorithm.preset=ppo", "algorithm.old_log_probs=recompute", "critic.learning_rate=0.1")
BLIND = ("eval.datasets={}", "dataset.source=tasks.py:tasks", "algorithm.kl_coef=0.05")
UNSPLIT = ("eval.datasets.held.source=train.jsonl",)
DENSE = ("serving.engine=vllm", "sync.backend=disk", "sync.dense_every=8")
ROUNDED = (*LATE, "model.dtype=bfloat16")
JUDGED = ("reward.functions.style={target: 'rewards.py:paid', args: {model: {url: http://j}}}",)
PAID = ("reward.functions.length={target: 'rewards.py:paid'}",)
SCORED = ("reward.models.rm.path=[rm0]",)
MEMBERS = ("reward.models.rm.path=[rm0,rm1]",)
CLIPPED = ("reward.clip=[-1.0,1.0]",)
CALLS = ("chat.tool_parser=fenced_code",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """What a detector fires on, and how more of each key moves it."""

    metric: str
    """Curve of the stream."""
    way: int
    """1 where a lever has to raise it, -1 where it has to lower it."""
    raised_by: str = ""
    """Keys of which more raises it: larger, or set where it was not."""
    lowered_by: str = ""
    """Keys of which more lowers it."""
    streams: tuple[str, ...] = ()
    """Streams of the benchmark that it fires on."""
    runs: tuple[tuple[str, ...], ...] = ((), PULLED, LATE)
    """Overrides of the run file."""


UPDATES = "train.learning_rate train.epochs_per_batch train.minibatches"
PULL = "algorithm.kl_coef algorithm.kl_target"
SEEN = "eval.datasets.NAME.source eval.datasets.NAME.split eval.every_steps"
TASKS = (
    "dataset.difficulty.keep dataset.difficulty.source reward.dynamic_filtering.keep "
    "rollout.n_samples_per_prompt"
)
FORM = "reward.functions.NAME.target"
BRIEF = "reward.overlong.buffer_len reward.stop_properly_penalty_coef"
SHORT = f"{BRIEF} algorithm.loss_agg_mode"
NUMBERS = {
    "not_finite": Number(
        metric="train/loss", way=-1, streams=("loss is not a number",),
        raised_by=f"{UPDATES} train.max_grad_norm",
        lowered_by="reward.normalize reward.clip train.warmup_steps"),
    "entropy_collapse": Number(
        metric="entropy", way=1, streams=("entropy goes to zero", "entropy plummets"),
        raised_by=f"algorithm.entropy_coef algorithm.eps_clip_high {PULL} algorithm.loss_agg_mode",
        lowered_by=UPDATES),
    "entropy_explosion": Number(
        metric="entropy", way=-1, streams=("entropy climbs",), raised_by=UPDATES, lowered_by=PULL),
    "decoupling": Number(
        metric="eval/held/score", way=1, streams=("held-out falls",),
        raised_by=f"{PULL} {FORM} {SEEN}", runs=((), PULLED, BLIND)),
    "score_falls": Number(
        metric="score", way=1, streams=("reward is paid beside the task",),
        raised_by=f"{PULL} {SEEN}", lowered_by="reward.functions.length.weight",
        runs=((), PAID, BLIND, UNSPLIT)),
    "unscored_pay": Number(
        metric="rewards/correct/mean", way=1, raised_by=f"{PULL} {SEEN}",
        streams=("one part of the reward eats another",), runs=((), PULLED, BLIND)),
    "judge_hacking": Number(
        metric="rewards/style/mean", way=-1, streams=("judge is pleased",),
        raised_by="reward.functions.style.weight", lowered_by=f"{PULL} {SEEN} reward.env_weight",
        runs=(JUDGED, (*JUDGED, *BLIND, "reward.env_weight=0.0"))),
    "members_disagree": Number(
        metric="rewards/rm/std_between/mean", way=-1, streams=("members part",),
        lowered_by=f"reward.models.rm.disagreement {PULL} {SEEN}",
        runs=(MEMBERS, (*MEMBERS, *BLIND))),
    "reward_model_drift": Number(
        metric="rewards/rm/mean", way=-1, raised_by="reward.models.rm.weight",
        streams=("reward model without end",), runs=(SCORED, (*SCORED, *BLIND)),
        lowered_by=f"{PULL} {SEEN} reward.refresh.model reward.refresh.every_steps "
        "reward.refresh.labeller reward.refresh.old_pairs"),
    "length_hacking": Number(
        metric="completions/mean_length", way=-1, streams=("length pays",), lowered_by=SHORT),
    "gibberish": Number(
        metric="entropy", way=-1, streams=("gibberish seen by its curves",),
        raised_by=UPDATES, lowered_by=f"{PULL} {FORM}"),
    "pattern_collapse": Number(
        metric="entropy", way=1, streams=("one answer for all",),
        raised_by=f"{PULL} {SEEN} algorithm.eps_clip_high", runs=((), PULLED, BLIND)),
    "value_divergence": Number(
        metric="critic/vf_loss", way=-1, streams=("critic misleads",), runs=(PPO, PPO[:2]),
        raised_by="critic.learning_rate",
        lowered_by="critic.warmup_steps critic.path algorithm.preset"),
    "sampler_learner_gap": Number(
        metric="sampling/sampling_logp_difference/mean", way=-1,
        streams=("sampler far behind", "sampler off by a quarter nat", "weights do not arrive"),
        runs=((), ROUNDED, BEHIND, DENSE),
        raised_by="schedule.staleness_threshold schedule.trigger_parameter_sync_step "
        "sync.dense_every",
        lowered_by="rollout.top_p schedule.partial_rollout algorithm.is_correction_type "
        "algorithm.old_log_probs sync.backend model.head_dtype"),
    "empty_gradient": Number(
        metric="frac_reward_zero_std", way=-1, lowered_by=f"{TASKS} model.path",
        streams=("all rollouts succeed", "all rollouts fail", "nothing is solved")),
    "reward_flat": Number(
        metric="reward", way=1, raised_by=f"{TASKS} train.learning_rate model.path",
        streams=("kl stays at nothing", "reward is never paid")),
    "reward_spike": Number(
        metric="reward", way=-1, streams=("reward jumps",), lowered_by=f"{FORM} {PULL}"),
    "reward_fall": Number(
        metric="reward", way=1, streams=("reward falls",), raised_by=PULL, lowered_by=UPDATES),
    "reward_clipped": Number(
        metric="reward_shaping/clip/at_bound", way=-1, streams=("rewards on a bound",),
        lowered_by="reward.clip reward.normalize", runs=(CLIPPED,)),
    "kl_too_large": Number(
        metric="kl", way=-1, streams=("kl too large at once",), raised_by=UPDATES, lowered_by=PULL),
    "kl_too_small": Number(
        metric="kl", way=1, streams=("kl stays at nothing",), raised_by="train.learning_rate",
        lowered_by="algorithm.kl_coef"),
    "clip_fraction": Number(
        metric="clip_ratio/region_mean", way=-1, streams=("clipping grows",), raised_by=UPDATES),
    "grad_norm": Number(
        metric="train/grad_norm", way=-1, streams=("gradients spike",),
        raised_by=f"{UPDATES} train.max_grad_norm",
        lowered_by="reward.normalize reward.clip train.warmup_steps"),
    "truncation": Number(
        metric="completions/clipped_ratio", way=-1, streams=("limit too low", "turns run out"),
        runs=((), ("rollout.max_turn_tokens=48", "train.micro_batch_tokens=128"),
              ("rollout.max_assistant_turns=1",)),
        lowered_by=f"{BRIEF} rollout.max_turn_tokens rollout.max_response_tokens "
        "rollout.max_context_tokens rollout.max_assistant_turns train.micro_batch_tokens"),
    "repetition": Number(
        metric="entropy", way=1, streams=("text goes in circles",), raised_by=f"{BRIEF} {PULL}"),
    "turns_collapse": Number(
        metric="num_turns/mean", way=1, streams=("agent gives up",), raised_by=f"{FORM} {PULL}"),
    "tool_errors": Number(
        metric="tools/failure_frequency", way=-1, runs=((), CALLS),
        streams=("tools fail more and more", "one dead tool", "calls become unreadable",
                 "calls have no form"),
        lowered_by="health.rules chat.system_prompt chat.tool_parser"),
    "infrastructure": Number(
        metric="rollout/termination/sandbox_failed", way=-1,
        streams=("sandboxes fail more and more", "a grader that crashes",
                 "sandboxes run out of memory"),
        lowered_by="rollout.retries rollout.env_timeout_s sandbox.limits.memory_mb"),
    "starvation": Number(
        metric="rollout/stale_dropped", way=-1, runs=(LATE,), lowered_by="schedule.partial_rollout",
        streams=("slow rollouts are dropped for their age",), raised_by="schedule.max_version_lag"),
}  # fmt: skip
"""A lever on a key that is not here fails, and so does a detector of runs that is not."""

FITS = {
    "margin_alone": Number(
        metric="pref/margin", way=-1,
        raised_by="data.epochs train.learning_rate",
        lowered_by=f"objective.label_smoothing objective.center_coef {SEEN}"),
    "likelihood_falls": Number(
        metric="pref/logp_chosen", way=1,
        raised_by="objective.nll_coef objective.beta", lowered_by="train.learning_rate"),
    "length_preference": Number(
        metric="pref/length_corr", way=-1,
        lowered_by="objective.length_normalized data.source"),
}  # fmt: skip
