"""The detectors, one file a subject.

A new one is a function under `@detector(...)` in a file of this folder, and one line here.
"""

LISTED = (
    "policy:not_finite",
    "policy:entropy_collapse",
    "policy:entropy_explosion",
    "held_out:decoupling",
    "score:score_falls",
    "unscored:unscored_pay",
    "judge:judge_hacking",
    "reward_model:members_disagree",
    "reward_model:reward_model_drift",
    "preferences:margin_alone",
    "preferences:likelihood_falls",
    "preferences:length_preference",
    "length:length_hacking",
    "text:gibberish",
    "text:pattern_collapse",
    "critic:value_divergence",
    "batch:sampler_learner_gap",
    "batch:empty_gradient",
    "reward:reward_flat",
    "reward:reward_spike",
    "reward:reward_fall",
    "clipped:reward_clipped",
    "policy:kl_too_large",
    "policy:kl_too_small",
    "update:clip_fraction",
    "update:grad_norm",
    "length:truncation",
    "text:repetition",
    "agent:turns_collapse",
    "agent:tool_errors",
    "infrastructure:infrastructure",
    "staleness:starvation",
)
"""`MODULE:NAME` of every detector, in the order in which verdicts are listed."""
