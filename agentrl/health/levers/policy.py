"""Remedies against each failure: config keys with values worked out from the run's own.

A lever that the run has pulled already is left out. A name in parentheses, as DAPO or ProRL, is
the recipe that the lever is from; `ours` is our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.data.tasks.files import file_kind
from agentrl.health.records import Lever

Config = Mapping[str, Any]
"""Dotted key to value; may be empty."""


def value_of(config: Config, key: str, default: Any) -> Any:
    """The value of a key, or `default` where it is None or the config cannot be read."""
    value = config.get(key, default)
    return default if value is None else value


def trains_on(config: Config, name: str) -> bool:
    """True if an evaluation is of the training tasks: of their source and split, or by its name
    where no config says so."""
    key, parts = f"eval.datasets.{name}", ("source", "split")
    own = [config.get(f"{key}.{part}") for part in parts]
    if own[0] is None:
        return "train" in name
    return own == [config.get(f"dataset.{part}") for part in parts]


def clip_higher(config: Config) -> list[Lever]:
    """Room for unlikely tokens to grow (DAPO)."""
    if value_of(config, "algorithm.policy_loss", "ppo_clip") != "ppo_clip":
        return []
    low = value_of(config, "algorithm.eps_clip_low", 0.2)
    if value_of(config, "algorithm.eps_clip_high", 0.2) > low:
        return []
    return [
        Lever(
            key="algorithm.eps_clip_high",
            value=round(1.4 * low, 4),
            why="A wider upper bound lets unlikely tokens grow (DAPO clip-higher).",
        )
    ]


def stronger_kl(config: Config) -> list[Lever]:
    """Pull back to the reference."""
    coef = value_of(config, "algorithm.kl_coef", 0.0)
    found = [
        Lever(
            key="algorithm.kl_coef",
            value=round(2 * coef, 6) if coef else 0.01,
            why="The reference still has its entropy and its language: pull towards it.",
        )
    ]
    if coef and value_of(config, "algorithm.kl_target", None) is None:
        found.append(
            Lever(
                key="algorithm.kl_target",
                value=[0.05, 0.2],
                why="A fixed weight does not fit every model: steer it by the measured KL.",
            )
        )
    return found


def entropy_bonus(config: Config) -> list[Lever]:
    """Pay for the entropy of the policy."""
    coef = value_of(config, "algorithm.entropy_coef", 0.0)
    return [
        Lever(
            key="algorithm.entropy_coef",
            value=round(2 * coef, 6) if coef else 0.001,
            why="The loss itself holds entropy up; raise it slowly, too much of it makes noise "
            "pay (PPO, arXiv 1707.06347, equation 9).",
        )
    ]


def weaker_kl(config: Config) -> list[Lever]:
    """Weaken the penalty that holds the policy back."""
    coef = value_of(config, "algorithm.kl_coef", 0.0)
    if not coef:
        return []
    return [
        Lever(
            key="algorithm.kl_coef",
            value=round(coef / 2, 6),
            why="The penalty holds the policy where it began.",
        )
    ]


def token_level(config: Config) -> list[Lever]:
    """Tokens weigh the same in short and long responses (Dr. GRPO)."""
    if value_of(config, "algorithm.loss_agg_mode", "token-mean") != "seq-mean-token-mean":
        return []
    if value_of(config, "algorithm.policy_loss", "") == "gspo":
        return []  # its ratio is one of whole sequences
    return [
        Lever(
            key="algorithm.loss_agg_mode",
            value="token-mean",
            why="A mean per response favours short confident patterns (Dr. GRPO).",
        )
    ]


def lower_rate(config: Config, factor: float = 2.0) -> list[Lever]:
    """Take smaller optimizer steps."""
    rate = value_of(config, "train.learning_rate", 1e-6)
    found = [
        Lever(
            key="train.learning_rate",
            value=float(f"{rate / factor:.3g}"),
            why="Smaller updates stay inside what the samples can say (clip_ratio).",
        )
    ]
    for key in ("train.epochs_per_batch", "train.minibatches"):
        times = value_of(config, key, 1)
        if times > 1:
            found.append(
                Lever(
                    key=key,
                    value=max(1, times // 2),
                    why="Fewer updates on the same rollouts (num_ppo_epochs).",
                )
            )
    return found


def higher_rate(config: Config) -> list[Lever]:
    """Take larger optimizer steps."""
    rate = value_of(config, "train.learning_rate", 1e-6)
    return [
        Lever(
            key="train.learning_rate",
            value=float(f"{3 * rate:.3g}"),
            why="The policy does not move at this rate (kl).",
        )
    ]


def tame_gradients(config: Config) -> list[Lever]:
    """Outliers of rewards and gradients."""
    found: list[Lever] = []
    if value_of(config, "train.max_grad_norm", 1.0) > 1.0:
        found.append(
            Lever(
                key="train.max_grad_norm",
                value=1.0,
                why="The usual bound, which keeps early norms of 5-10 safe.",
            )
        )
    if config.get("reward.clip") is None:
        found += [
            *whitened_rewards(config),
            Lever(
                key="reward.clip",
                value=[-10.0, 10.0],
                why="A rare huge reward makes a huge gradient; it acts after normalize, which "
                "brings rewards to the scale of these bounds.",
            ),
        ]
    if not value_of(config, "train.warmup_steps", 0):
        steps = value_of(config, "train.steps", 20)
        found.append(
            Lever(
                key="train.warmup_steps",
                value=max(1, steps // 20),
                why="The optimizer's second moments are unknown in the first steps (ours).",
            )
        )
    return found


def whitened_rewards(config: Config) -> list[Lever]:
    """Rewards in standard deviations, the scale of the usual bounds."""
    if value_of(config, "reward.normalize", False):
        return []
    return [
        Lever(
            key="reward.normalize",
            value=True,
            why="Whiten, then clip: bounds in standard deviations fit rewards of any size.",
        )
    ]


def wider_clip(config: Config, key: str) -> list[Lever]:
    """Bounds that only outliers touch: ten times as far apart, but at least [-10, 10].

    Args:
        config: of the run.
        key: `reward.clip` or `reward.clip_raw`.
    """
    low, high = value_of(config, key, (-1.0, 1.0))
    middle, half = (low + high) / 2, 5 * (high - low)
    wider = Lever(
        key=key,
        value=[min(-10.0, middle - half), max(10.0, middle + half)],
        why="A clip is for outliers: rewards on one bound are equal and teach nothing.",
    )
    return [*(whitened_rewards(config) if key == "reward.clip" else []), wider]


def shorter(config: Config, *, ended_by: str = "max_response_tokens") -> list[Lever]:
    """Length must not pay (DAPO, ProRL).

    Args:
        config: of the run.
        ended_by: limit that truncates most rollouts; the penalty near the budget of a response
            sees nothing of a shorter one.
    """
    found: list[Lever] = []
    budget = value_of(config, "rollout.max_response_tokens", 2048)
    near = ended_by == "max_response_tokens"
    if near and config.get("reward.overlong.buffer_len") is None:
        found.append(
            Lever(
                key="reward.overlong.buffer_len",
                value=max(1, budget // 5),
                why="A penalty that grows over the last fifth of the budget (DAPO).",
            )
        )
    if config.get("reward.stop_properly_penalty_coef") is None:
        found.append(
            Lever(
                key="reward.stop_properly_penalty_coef",
                value=0.5,
                why="Rollouts that were cut off earn half (ProRL).",
            )
        )
    return found


def second_reward(config: Config) -> list[Lever]:
    """A reward that reads the trace, too."""
    return [
        Lever(
            key="reward.functions.NAME.target",
            value="your_package.rewards:well_formed_trace",
            why="A second reward for a well-formed trace makes short cuts and gibberish cost.",
        )
    ]


def lighter_part(config: Config, part: str, weight: float) -> list[Lever]:
    """Pay less for what a judge or a reward model likes.

    Args:
        config: of the run.
        part: section of it that the part is set in, as `reward.functions.style`.
        weight: what it has now.
    """
    found = [
        Lever(
            key=f"{part}.weight",
            value=round(weight / 2, 6),
            why=f"{part} is paid for more than it measures: halve what it counts, and measure it "
            "with agentrl judge check on answers of this run (ours).",
        )
    ]
    if value_of(config, "reward.env_weight", 1.0) == 0:
        found.append(
            Lever(
                key="reward.env_weight",
                value=1.0,
                why="The environment's own reward is the one that a text cannot talk to.",
            )
        )
    return found


def see_held_out(config: Config) -> list[Lever]:
    """Evaluate often enough to see the reward leave the score."""
    found: list[Lever] = []
    names = {key.split(".")[2] for key in config if key.startswith("eval.datasets.")}
    if config and all(trains_on(config, name) for name in names):
        why = "Tasks that are not trained on, in a split or file of their own (ours)."
        source = value_of(config, "dataset.source", "")
        # A file has no splits: another one of it has the same tasks.
        if not source or file_kind(Path(source)):
            value = "a file of tasks that are not trained on"
            found.append(Lever(key="eval.datasets.NAME.source", value=value, why=why))
        else:
            found += [
                Lever(key="eval.datasets.NAME.source", value=source, why=why),
                Lever(key="eval.datasets.NAME.split", value="test", why=why),
            ]
    if not 0 < value_of(config, "eval.every_steps", 0) <= 100:
        found.append(
            Lever(
                key="eval.every_steps",
                value=50,
                why="A held-out score every 50-100 steps is the one that cannot be gamed.",
            )
        )
    return found
