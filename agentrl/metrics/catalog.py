"""Every metric that agentrl logs: its name, what it says, its unit, and what verl calls it.

Data only; `agentrl.metrics.names` looks things up. Parts in capitals stand for a name or a number.
A name of verl is given where it is the same quantity, or as near to it as verl has one: its lengths
count every token of the response and its turns every message, while ours count what the policy
wrote.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricName:
    """One metric, or one family of them."""

    name: str
    """As logged; a part in capitals stands for any name or number, as in `eval/NAME/score`."""
    meaning: str
    """Meaning in a few words."""
    unit: str
    """`nats`, `s`, `tokens`, `count`, `share` (0 to 1), `ratio`; empty for a plain number."""
    verl: str
    """What verl calls it, with the same parts in capitals; empty where it has no such number."""


def _m(name: str, meaning: str, unit: str = "", verl: str = "") -> MetricName:
    return MetricName(name=name, meaning=meaning, unit=unit, verl=verl)


_ROLLOUT = (
    _m("reward", "mean measured reward of the trusted rollouts", "", "critic/score/mean"),
    _m("reward_std", "standard deviation of the reward inside a group, by rollout"),
    _m("frac_reward_zero_std", "rollouts whose group has equal rewards: no signal", "share"),
    _m("score", "mean of the environment's 0-1 verdict", "share"),
    _m("completions/mean_length", "sampled tokens of a rollout", "tokens", "response_length/mean"),
    _m("completions/min_length", "the shortest", "tokens", "response_length/min"),
    _m("completions/max_length", "the longest", "tokens", "response_length/max"),
    _m(
        "completions/clipped_ratio",
        "rollouts cut off by a limit of turns, tokens or context",
        "share",
        "response_length/clip_ratio",
    ),
    _m("num_turns/mean", "assistant turns of a rollout", "count", "num_turns/mean"),
    _m("tools/call_frequency", "tool calls of a rollout", "count", "tool_call_counts/mean"),
    _m("tools/failure_frequency", "tool results that are not ok", "share"),
    _m("tools/parse_error_frequency", "tool calls that could not be parsed", "share"),
    _m("tools/parse_error/STATUS", "calls that could not be parsed, by what is wrong", "count"),
    _m("tools/duration_s/mean", "wall time of a tool call", "s"),
    _m("tools/status/STATUS", "tool results by how the call ended", "count"),
    _m("tools/by_name/TOOL/STATUS", "the same for each tool", "count"),
    _m("rollout/started", "rollouts of the step", "count"),
    _m("rollout/dropped", "rollouts that are not trained on because of how they ended", "count"),
    _m("rollout/rows", "rows of training data; a rollout has several after a break", "count"),
    _m("rollout/duration_s/mean", "wall time of a rollout", "s"),
    _m("rollout/duration_s/max", "wall time of the slowest", "s"),
    _m("rollout/termination/REASON", "rollouts by why they ended", "count"),
    _m("rollout/retried/REASON", "attempts thrown away and tried again, by why", "count"),
    _m("rollout/groups_run_again", "groups begun again after a worker was lost", "count"),
    _m("rollout/workers_lost", "rollout workers that died", "count"),
    _m("rollout/filter_rounds", "times more groups were asked for after the filter", "count"),
    _m("rollout/groups_missing", "groups the step lacks after the last round", "count"),
    _m("selection/chosen_share", "groups whose task was chosen by earlier outcomes", "share"),
    _m(
        "selection/dataset_score",
        "mean score of the groups whose task was not chosen: the estimate for the dataset",
        "share",
    ),
    _m(
        "selection/dataset_frac_flat",
        "the same for rollouts whose group has equal scores",
        "share",
    ),
    _m("rollout/stale_dropped", "rollouts dropped because their weights are too old", "count"),
    _m("rollout/put_off", "rollouts put off to a later step by tail batching", "count"),
    _m("env/NAME", "what the environment logs of a rollout (`extra_logs`)"),
    _m("sandbox/opened", "sandboxes opened", "count"),
    _m("sandbox/warm", "of them, taken from the warm pool", "count"),
    _m("sandbox/reused", "of them, used before", "count"),
    _m("sandbox/forked", "of them, copied from a running one", "count"),
    _m("sandbox/outcome/OUTCOME", "commands in sandboxes by how they ended", "count"),
    _m("sandbox/wait_s/mean", "wait for a place in the pool, by rollout", "s"),
    _m("sandbox/wait_s/max", "the longest wait", "s"),
    _m("sandbox/start_s/mean", "start of its sandboxes, by rollout", "s"),
    _m("sandbox/start_s/max", "the longest start", "s"),
    _m("served/requests", "requests to served models: judges and simulated users", "count"),
    _m("served/failed", "of them, without a usable answer", "count"),
    _m("served/cached", "answers that were known already and cost nothing", "count"),
    _m("served/prompt_tokens", "tokens that served models read", "tokens"),
    _m("served/completion_tokens", "tokens that served models wrote", "tokens"),
    _m("served/cost", "price of these tokens, in the currency of the configured prices"),
)
_REWARD = (
    _m("rewards/NAME/mean", "one part of the reward"),
    _m("reward_shaping/reward", "mean reward after shaping", "", "critic/rewards/mean"),
    _m("reward_shaping/running_mean", "running mean the rewards are normalised by"),
    _m("reward_shaping/running_std", "running deviation the rewards are normalised by"),
    _m("reward_shaping/PART/mean", "what a penalty or a clip adds to the reward"),
    _m("reward_shaping/PART/share", "rollouts it changes", "share"),
    _m("reward_shaping/PART/at_bound", "rewards that lie on a bound after a clip", "share"),
)
_BATCH = (
    _m("batch/advantage_mean", "mean advantage by rollout", "", "critic/advantages/mean"),
    _m("batch/advantage_abs_mean", "mean size of the advantage by rollout"),
    _m("batch/return_mean", "mean target of the critic by token"),
    _m("batch/groups_singleton", "groups with one trusted rollout: no baseline", "count"),
    _m("batch/groups_filtered_share", "groups the dynamic filter leaves out", "share"),
    _m("batch/groups_REASON", "groups the dynamic filter leaves out, by why", "count"),
    _m("batch/micro_batches", "forward and backward passes", "count"),
    _m("batch/tokens", "tokens the model reads in the updates", "tokens"),
    _m("batch/tokens_measured", "tokens read for metrics alone, of rows without a gradient",
       "tokens"),
    _m("batch/tokens_masked_stale", "sampled tokens masked because of their age", "tokens"),
    _m("batch/rows_started", "rows of the step", "count"),
    _m("batch/rows_trained", "rows with a gradient", "count"),
    _m("batch/rows_zero_advantage", "rows whose advantage is zero", "count"),
    _m("batch/rows_masked_stale", "rows of which age leaves no token", "count"),
    _m("batch/rows_dropped/REASON", "rows left out, by why", "count"),
    _m("waste/tokens/FATE", "sampled tokens of the step by what became of them", "tokens"),
    _m("waste/seconds/FATE", "seconds of rollouts by what became of them", "s"),
    _m("staleness/lag_mean", "steps between the weights that sampled a token and those trained",
       "steps", "training/off_policy/trajectory_staleness/mean"),
    _m("staleness/lag_max", "the oldest token", "steps",
       "training/off_policy/trajectory_staleness_worst/max"),
    _m("staleness/lag_p95", "95 % of the tokens are no older", "steps"),
    _m("staleness/share_lag_N", "tokens that are N steps old", "share"),
)  # fmt: skip
_TRAIN = (
    _m("train/loss", "loss of an update, penalty included", "", "actor/loss"),
    _m("train/kl_loss", "the share of the KL penalty in it"),
    _m("train/kl_coef", "weight of the KL penalty", "", "actor/kl_coef"),
    _m("train/grad_norm", "norm of the gradient before clipping", "", "actor/grad_norm"),
    _m("train/learning_rate", "learning rate of the policy", "", "actor/lr"),
    _m("train/ratio_mean", "policy ratio, new to old", "ratio"),
    _m("train/ratio_max", "the largest", "ratio"),
    _m("train/tokens_per_second", "tokens the updates read in a second of training", "tokens/s"),
    _m("train/updates", "optimizer updates", "count"),
    _m("train/updates_skipped", "updates without any gradient", "count"),
    _m("train/steps_without_signal", "1 for a step without any gradient", "count"),
    _m("train/reference_updates", "times the reference followed the policy", "count"),
    _m("entropy", "entropy of the policy at sampled tokens", "nats", "actor/entropy"),
    _m("kl", "KL divergence from the reference policy (k3)", "nats", "actor/kl_loss"),
    _m("clip_ratio/low_mean", "sampled tokens held by the lower bound of the ratio", "share"),
    _m("clip_ratio/high_mean", "sampled tokens held by the upper bound", "share"),
    _m("clip_ratio/region_mean", "sampled tokens held by either", "share", "actor/pg_clipfrac"),
    _m("clip_ratio/dual_mean", "tokens held by the dual clip", "share", "actor/pg_clipfrac_lower"),
    _m("critic/vf_loss", "loss of the critic", "", "critic/vf_loss"),
    _m("critic/vf_clipfrac", "values held by the clip", "share", "critic/vf_clipfrac"),
    _m("critic/vf_explained_var", "variance of the returns that the critic explains", "share",
       "critic/vf_explained_var"),
    _m("critic/grad_norm", "norm of the critic's gradient", "", "critic/grad_norm"),
    _m("critic/lr", "learning rate of the critic", "", "critic/lr"),
    _m("critic/values/mean", "what the critic expects", "", "critic/values/mean"),
    _m("critic/values/min", "the least", "", "critic/values/min"),
    _m("critic/values/max", "the most", "", "critic/values/max"),
    _m("critic/returns/mean", "what came", "", "critic/returns/mean"),
    _m("critic/returns/min", "the least", "", "critic/returns/min"),
    _m("critic/returns/max", "the most", "", "critic/returns/max"),
)  # fmt: skip
_SAMPLER = (
    _m("sampling/sampling_logp_difference/mean",
       "mean distance of the trainer's log-probability from the sampler's", "nats"),
    _m("sampling/sampling_logp_difference/max", "the largest", "nats"),
    _m("sampling/importance_sampling_ratio/mean", "weight of the sampler correction", "ratio",
       "rollout_corr/rollout_is_mean"),
    _m("sampling/importance_sampling_ratio/min", "the smallest", "ratio",
       "rollout_corr/rollout_is_min"),
    _m("sampling/importance_sampling_ratio/max", "the largest", "ratio",
       "rollout_corr/rollout_is_max"),
    _m("rollout_corr/kl", "KL divergence of the trainer's policy from the sampler's", "nats",
       "rollout_corr/kl"),
    _m("rollout_corr/chi2", "chi-square divergence of the two", "", "rollout_corr/chi2_token"),
    _m("rollout_corr/ess", "effective sample size of the raw ratios", "share",
       "rollout_corr/rollout_is_eff_sample_size"),
    _m("rollout_corr/ratio_mean", "raw ratio, trainer to sampler", "ratio"),
    _m("rollout_corr/ratio_min", "the smallest", "ratio"),
    _m("rollout_corr/ratio_max", "the largest", "ratio"),
    _m("rollout_corr/ratio_square_mean", "its mean square", "ratio"),
    _m("is_correction/clamped_mean", "weights that the correction clamps", "share"),
    _m("is_correction/dropped_mean", "tokens that the correction drops", "share"),
    _m("is_correction/sequence_ratio_mean", "mean ratio of whole rollouts", "ratio"),
)  # fmt: skip
_MACHINE = (
    _m("rollout/concurrency", "bound on the rollouts at once", "count"),
    _m("serving/cached_share", "prompt tokens the engines did not compute again", "share"),
    _m("serving/sticky_share", "later turns sent to the engine of the first", "share"),
    _m("serving/turns", "turns sampled", "count"),
    _m("serving/moves_crowded", "conversations moved because their engine is full", "count"),
    _m("serving/moves_forced", "conversations moved because their engine is gone", "count"),
    _m("serving/failures", "requests that failed", "count"),
    _m("sync/stage_s", "weights on their way before engines stop", "s"),
    _m("sync/stop_s", "engines coming to a stop", "s"),
    _m("sync/prepare_s", "engines taking weights beside those they sample with", "s"),
    _m("sync/resume_s", "engines beginning again after new weights", "s"),
    _m("sync/load_s", "weights going into the engines", "s"),
    _m("sync/pause_s", "engines idle because of new weights", "s"),
    _m("sync/bytes", "bytes sent", "bytes"),
    _m("sync/replicas", "engines that took the weights", "count"),
    _m("sync/quarantined", "engines left out", "count"),
    _m("async/trainer_idle_share", "time the trainer waits for rollouts", "share"),
    _m("async/rollout_idle_share", "places for rollouts that stay empty", "share"),
    _m("async/queued", "groups waiting to be trained", "count"),
    _m("async/running", "groups being rolled out", "count"),
    _m("perf/tokens_per_second", "tokens sampled in a second of rollouts", "tokens/s"),
    _m("timing_s/rollout", "rolling out", "s", "timing_s/gen"),
    _m("timing_s/train", "training", "s", "timing_s/update_actor"),
    _m("timing_s/train_early", "training while rollouts of the step go on", "s"),
    _m("train/updates_early", "updates made while rollouts of the step go on", "count"),
    _m("timing_s/measure", "of training, reading rows for metrics alone", "s"),
    _m("timing_s/sync", "new weights to the engines", "s", "timing_s/update_weights"),
    _m("timing_s/wait", "trainer waiting for rollouts", "s"),
    _m("timing_s/drain", "waiting for rollouts to end", "s"),
    _m("timing_s/evaluation_wait", "waiting for an evaluation beside training to end", "s"),
    _m("timing_s/eval", "evaluation", "s", "timing_s/testing"),
    _m("timing_s/checkpoint", "saving a checkpoint", "s", "timing_s/save_checkpoint"),
    _m("timing_s/step", "the whole step", "s", "timing_s/step"),
    _m("timing_s/elapsed", "the run so far", "s"),
    _m("record/failures", "records for the inspector that could not be written", "count"),
)
_EVAL = (
    _m("eval/NAME/score", "mean score over the tasks of a dataset", "share",
       "val-core/NAME/reward/mean@N"),
    _m("eval/NAME/score_low", "lower end of its 95 % interval", "share"),
    _m("eval/NAME/score_high", "upper end of its 95 % interval", "share"),
    _m("eval/NAME/pass@K", "tasks solved by at least one of K rollouts", "share",
       "val-core/NAME/reward/best@K/mean"),
    _m("eval/NAME/pass@K_low", "lower end of its 95 % interval", "share"),
    _m("eval/NAME/pass@K_high", "upper end of its 95 % interval", "share"),
    _m("eval/NAME/mean_length", "sampled tokens of a rollout", "tokens"),
    _m("eval/NAME/truncated", "rollouts cut off by a limit", "share"),
    _m("eval/NAME/untrusted", "rollouts that failed for reasons of their own", "count"),
)  # fmt: skip

FIT: tuple[MetricName, ...] = (
    _m("sft/loss", "loss of an update, weighted as objective.loss_agg_mode says"),
    _m("sft/nll", "negative log-likelihood of a trained token", "nats"),
    _m("sft/perplexity", "e to the power of it"),
    _m("sft/entropy", "entropy of the policy at the trained tokens", "nats"),
    _m("sft/tokens", "trained tokens", "tokens"),
    _m("dpo/loss", "loss of an update: mean over its pairs"),
    _m("rm/loss", "loss of an update: mean over its pairs, with what keeps rewards near 0"),
    _m("rm/loss/PART", "one part of it: pair, center or bsr"),
    _m("pref/accuracy", "pairs whose chosen answer has the higher score; ties count half", "share"),
    _m("pref/margin", "beta times the difference of the scores"),
    _m("pref/reward_chosen", "beta times the score of the chosen answer: its log-ratio"),
    _m("pref/reward_rejected", "the same of the rejected answer"),
    _m("pref/logp_chosen", "log-probability of the chosen answer", "nats"),
    _m("pref/logp_rejected", "log-probability of the rejected answer", "nats"),
    _m("pref/logp_chosen_per_token", "of a token of the chosen answers", "nats"),
    _m("pref/logp_rejected_per_token", "of a token of the rejected answers", "nats"),
    _m("pref/kl_chosen", "log-ratio of the chosen answer to the reference", "nats"),
    _m("pref/length_corr", "correlation of the difference of scores with that of lengths"),
    _m("pref/length_gap", "trained tokens of the chosen answer less those of the rejected"),
    _m("pref/length_gap_square", "mean of its square, for length_corr"),
    _m("pref/score_gap", "difference of the scores"),
    _m("pref/score_gap_square", "mean of its square, for length_corr"),
    _m("pref/score_length_product", "mean of the product of both, for length_corr"),
    _m("rm/accuracy", "pairs whose chosen answer has the higher reward; ties count half", "share"),
    _m("rm/margin", "reward of the chosen answer less that of the rejected one"),
    _m("rm/reward_chosen", "reward of the chosen answer"),
    _m("rm/reward_rejected", "reward of the rejected answer"),
    _m("rm/reward_mean", "reward over both answers"),
    _m("rm/deviation", "deviation of the reward that `purm` is sure of"),
    _m("fit/examples", "examples of a step of `agentrl fit`", "count"),
    _m("fit/tokens", "tokens that the model read in it", "tokens"),
    _m("fit/epoch", "passes over the data so far", "ratio"),
)
"""Those of `agentrl fit`, which no run of RL logs."""

CATALOG: tuple[MetricName, ...] = (
    *_ROLLOUT, *_REWARD, *_BATCH, *_TRAIN, *_SAMPLER, *_MACHINE, *_EVAL, *FIT,
)  # fmt: skip
"""The catalog, in the order of a step."""
