"""What a config's algorithm is, and what about it is allowed but rarely meant."""

from __future__ import annotations

from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config.algorithm import CriticSection
from agentrl.config.blocks import describe_blocks
from agentrl.runtime.drivers.choose import runs_ahead
from agentrl.runtime.records import Check, Status
from agentrl.runtime.scoring.evaluate import metric_keys


def doubts(config: RunConfig, *, base: Path) -> list[str]:
    """Combinations of keys that run and most likely do not do what was wanted.

    Args:
        config: of the run.
        base: where its relative paths start.

    Raises:
        ConfigError: there is no such policy loss.
    """
    from agentrl.train.losses import find_loss

    algorithm, reward = config.resolved_algorithm(), config.reward
    loss = find_loss(algorithm.policy_loss, base=base)
    found = [f"algorithm: {text}" for text in algorithm.doubts()]
    if (
        runs_ahead(config)
        and algorithm.old_log_probs == "recompute"
        and algorithm.is_correction_type == "none"
        and loss.correction == "none"
    ):
        found.append(
            "algorithm: the schedule trains on tokens of older weights, but with old_log_probs "
            f"'recompute' and is_correction_type 'none' {algorithm.policy_loss} takes them for the "
            "trainer's own; set is_correction_type: tis, or old_log_probs: rollout or decoupled"
        )
    if reward.dynamic_filtering and config.rollout.n_samples_per_prompt == 1:
        found.append(
            "reward.dynamic_filtering with rollout.n_samples_per_prompt 1: a group's mean is one "
            f"score, and only one strictly between {list(reward.dynamic_filtering.keep)} is trained on"
        )
    if reward.env_weight == 0.0 and not reward.functions:
        found.append(
            "reward.env_weight is 0 and there are no reward.functions: every reward is 0 and "
            "nothing is learned"
        )
    return found + _idle_critic(config) + _best_checkpoints(config)


def _idle_critic(config: RunConfig) -> list[str]:
    """A critic that was set beside an algorithm that has none."""
    if config.resolved_algorithm().needs_values or config.critic == CriticSection():
        return []
    return ["critic: without algorithm.advantage_estimator gae there is no critic"]


def _best_checkpoints(config: RunConfig) -> list[str]:
    """Why no checkpoint, or only the last, would be among the best."""
    kept, by = config.checkpoint.keep_best, config.checkpoint.best_by
    if config.train.steps == 0 or not (kept or by):
        return []
    found = []
    keys = metric_keys(config.eval.n_samples)
    if by and by not in {f"eval/{name}/{key}" for name in config.eval.datasets for key in keys}:
        found.append(
            f"checkpoint.best_by {by!r} is no metric of an evaluation; they are called "
            f"eval/NAME/ and {', '.join(keys)}"
        )
    if kept and not config.eval.every_steps:
        found.append(
            f"checkpoint.keep_best is {kept}, but eval.every_steps is 0: only the last step is "
            "evaluated; set eval.every_steps"
        )
    return found


async def algorithm(config: RunConfig, *, base: Path) -> Check | str:
    """The blocks of the algorithm, and doubts about it."""
    resolved = config.resolved_algorithm()
    found = doubts(config, base=base)
    blocks = describe_blocks(resolved, critic=config.critic, train=config.train)
    text = "\n".join([f"preset {resolved.preset}", *blocks])
    if found:
        return Check(name="algorithm", status=Status.WARN, detail="\n".join([*found, text]))
    return text
