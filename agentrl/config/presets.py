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
    "dapo",
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

LOSS_BLOCKS: Mapping[str, Mapping[str, Any]] = {
    "ppo_clip": {"eps_clip_low": 0.2, "eps_clip_high": 0.2},
    "gspo": {
        "eps_clip_low": 3e-4,
        "eps_clip_high": 4e-4,
        "loss_agg_mode": "seq-mean-token-mean",
    },
    "cispo": {"eps_clip_low": 1.0, "eps_clip_high": 4.0, "loss_agg_mode": "token-mean"},
    "sapo": {"loss_agg_mode": "seq-mean-token-mean"},
    "tis_reinforce": {
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.2,
        "old_log_probs": "recompute",
    },
}
"""Values that belong to a policy loss, of the same block: they are those of its paper, and go with
it beside a preset of another loss. The bounds of a token's ratio never act on that of a rollout."""
_IN_LOSS: Mapping[str, Any] = {"use_kl_loss": True, "kl_estimator": "k3"}
_IN_REWARD: Mapping[str, Any] = {"use_kl_loss": False, "kl_estimator": "k1"}


def _blocks(
    estimator: str, agg: LossAggMode, kl: Mapping[str, Any], *, loss: str = "ppo_clip", **own: Any
) -> Mapping[str, Any]:
    return {
        "policy_loss": loss,
        "eps_clip_low": 0.2,
        "eps_clip_high": 0.2,
        "whiten_advantages": False,
        "old_log_probs": "rollout",
        "advantage_estimator": estimator,
        "loss_agg_mode": agg,
        **kl,
        **LOSS_BLOCKS[loss],
        **own,
    }


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dr_grpo": _blocks("dr_grpo", "seq-mean-token-sum-norm", _IN_LOSS),
    "grpo": _blocks("group_norm", "seq-mean-token-mean", _IN_LOSS),
    "rloo": _blocks("rloo", "token-mean", _IN_REWARD),
    "reinforce++": _blocks("reinforce", "token-mean", _IN_REWARD, whiten_advantages=True),
    "reinforce++-baseline": _blocks(
        "reinforce_baseline", "token-mean", _IN_REWARD, whiten_advantages=True
    ),
    "ppo": _blocks("gae", "token-mean", _IN_REWARD, whiten_advantages=True),
    "gspo": _blocks("group_norm", "seq-mean-token-mean", _IN_LOSS, loss="gspo"),
    "cispo": _blocks("group_norm", "token-mean", _IN_LOSS, loss="cispo"),
    "tis_reinforce": _blocks("dr_grpo", "seq-mean-token-sum-norm", _IN_LOSS, loss="tis_reinforce"),
    "dapo": _blocks("group_norm", "token-mean", _IN_LOSS, eps_clip_high=0.28),
}
"""What each preset fills in where the section names nothing."""


def brought_along(preset: Any, settings: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Values that other keys bring with them and that differ from those of a preset, by such a key.

    A policy loss brings its own beside a preset of another loss, a sampler correction the
    log-probabilities that it compares with.

    Args:
        preset: `algorithm.preset`.
        settings: of `policy_loss` and `is_correction_type`; not checked yet.

    Example:
        >>> brought_along("grpo", {"policy_loss": "gspo"})
        {'policy_loss gspo': {'eps_clip_low': 0.0003, 'eps_clip_high': 0.0004}}
    """
    known = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
    sources = {"policy_loss": LOSS_BLOCKS, "is_correction_type": _CORRECTION_BLOCKS}
    found: dict[str, Mapping[str, Any]] = {}
    for key, blocks in sources.items():
        name = settings.get(key)
        if isinstance(name, str) and known and known.get(key) != name:
            own = {k: v for k, v in blocks.get(name, {}).items() if v != known[k]}
            found |= {f"{key} {name}": own} if own else {}
    return found


def reward_of_preset(preset: Any, *, budget: int) -> Mapping[str, Mapping[str, Any]]:
    """Keys of the section `reward` that a preset sets, where the section names nothing.

    DAPO (arXiv 2503.14476): its filter drops groups that are all right or all wrong and asks for
    others (equation 11; ten times at most, as its recipe), and its soft penalty covers the last
    fifth of the response budget (equation 13; 4096 of 20480 tokens there).

    Args:
        preset: `algorithm.preset`.
        budget: tokens that a response may have.
    """
    if preset != "dapo":
        return {}
    return {
        "dynamic_filtering": {"keep": (0.0, 1.0), "rounds": 10},
        "overlong": {"buffer_len": max(1, budget // 5), "penalty_factor": 1.0},
    }


OWN_OLD_POLICY = frozenset({"tis_reinforce"})
"""Losses whose ratio is to the policy before the step and never to the sampler (FORMULAS C.7)."""

IS_BOUNDS: Mapping[str, Bounds] = {
    "tis": (0.0, 2.0),
    "icepop": (0.5, 5.0),
    "seq-mask-tis": (0.5, 2.0),
}
"""Default bounds of each correction; they are not interchangeable (FORMULAS C.8, F16)."""

_CORRECTION_BLOCKS = {kind: {"old_log_probs": "recompute"} for kind in IS_BOUNDS}
"""As `LOSS_BLOCKS`, of a sampler correction."""

assert set(PRESETS) == set(get_args(Preset))
