"""Names of algorithms and of their blocks, and which blocks each name stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

Preset = Literal[
    "dr_grpo",
    "grpo",
    "rloo",
    "reinforce++",
    "reinforce++-baseline",
    "ppo",
    "gspo",
    "cispo",
    "tis_reinforce",
]
LossAggMode = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"
]
IsCorrection = Literal["none", "tis", "icepop", "seq-mask-tis"]
Bounds = tuple[float, float]

ALIASES: Mapping[str, str] = {
    "grpo": "group_norm",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
}

_CLIPPED: Mapping[str, Any] = {
    "policy_loss": "ppo_clip",
    "eps_clip_low": 0.2,
    "eps_clip_high": 0.2,
    "whiten_advantages": False,
    "old_log_probs": "rollout",
}
_IN_LOSS: Mapping[str, Any] = {"use_kl_loss": True, "kl_estimator": "k3"}
_IN_REWARD: Mapping[str, Any] = {"use_kl_loss": False, "kl_estimator": "k1"}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dr_grpo": {
        **_CLIPPED,
        **_IN_LOSS,
        "advantage_estimator": "dr_grpo",
        "loss_agg_mode": "seq-mean-token-sum-norm",
    },
    "grpo": {
        **_CLIPPED,
        **_IN_LOSS,
        "advantage_estimator": "group_norm",
        "loss_agg_mode": "seq-mean-token-mean",
    },
    "rloo": {
        **_CLIPPED,
        **_IN_REWARD,
        "advantage_estimator": "rloo",
        "loss_agg_mode": "token-mean",
    },
    "reinforce++": {
        **_CLIPPED,
        **_IN_REWARD,
        "advantage_estimator": "reinforce",
        "whiten_advantages": True,
        "loss_agg_mode": "token-mean",
    },
    "reinforce++-baseline": {
        **_CLIPPED,
        **_IN_REWARD,
        "advantage_estimator": "reinforce_baseline",
        "whiten_advantages": True,
        "loss_agg_mode": "token-mean",
    },
    "ppo": {
        **_CLIPPED,
        **_IN_REWARD,
        "advantage_estimator": "gae",
        "whiten_advantages": True,
        "loss_agg_mode": "token-mean",
    },
    "gspo": {
        **_CLIPPED,
        **_IN_LOSS,
        "advantage_estimator": "group_norm",
        "policy_loss": "gspo",
        "eps_clip_low": 3e-4,
        "eps_clip_high": 4e-4,
        "loss_agg_mode": "seq-mean-token-mean",
    },
    "cispo": {
        **_CLIPPED,
        **_IN_LOSS,
        "advantage_estimator": "group_norm",
        "policy_loss": "cispo",
        "eps_clip_low": 1.0,
        "eps_clip_high": 4.0,
        "loss_agg_mode": "token-mean",
    },
    "tis_reinforce": {
        **_CLIPPED,
        **_IN_LOSS,
        "advantage_estimator": "dr_grpo",
        "policy_loss": "tis_reinforce",
        "old_log_probs": "recompute",
        "loss_agg_mode": "seq-mean-token-sum-norm",
    },
}
"""What each preset fills in where the section names nothing."""

OWN_OLD_POLICY = frozenset({"tis_reinforce"})
"""Losses whose ratio is to the policy before the step and never to the sampler (FORMULAS C.7)."""

IS_BOUNDS: Mapping[str, Bounds] = {
    "tis": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "seq-mask-tis": (0.5, 2.0),
}
"""Default bounds of each correction; they are not interchangeable (FORMULAS C.8, F16)."""

assert set(PRESETS) == set(get_args(Preset))
