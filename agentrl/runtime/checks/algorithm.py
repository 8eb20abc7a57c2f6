"""Describes the algorithm of a run, and finds what about it is allowed but rarely meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.blocks import describe_blocks
from agentrl.config.plan import SchedulePlan, TrainerPlan
from agentrl.config.presets import reward_of_preset
from agentrl.config.reward import RewardSection
from agentrl.config.schema import CheckpointSection, EvalSection
from agentrl.errors import ConfigError
from agentrl.estimators import find_estimator
from agentrl.runtime.checks.rarely_meant import rarely_meant
from agentrl.runtime.drivers.choose import runs_ahead
from agentrl.runtime.scores import metric_keys
from agentrl.types.finding import Finding, Status

if TYPE_CHECKING:
    from agentrl.train.losses import LossSpec


def doubts(trainer: TrainerPlan, plan: SchedulePlan) -> list[str]:
    """Combinations of keys that run and most likely do not do what was wanted.

    Args:
        trainer: of the run.
        plan: of its schedule.

    Raises:
        ConfigError: there is no such advantage estimator or policy loss.
    """
    from agentrl.train.losses import find_loss

    algorithm, reward = trainer.algorithm, plan.reward
    check_estimator(trainer)
    loss = find_loss(algorithm.policy_loss, base=trainer.base)
    found = [f"algorithm: {text}" for text in [*algorithm.doubts(), *_loss_doubts(algorithm, loss)]]
    if (
        runs_ahead(plan.schedule)
        and algorithm.old_log_probs == "recompute"
        and algorithm.is_correction_type == "none"
        and loss.correction == "none"
    ):
        found.append(
            "algorithm: the schedule trains on tokens of older weights, but with old_log_probs "
            f"'recompute' and is_correction_type 'none' {algorithm.policy_loss} takes them for the "
            "trainer's own; set is_correction_type: tis, or old_log_probs: rollout or decoupled"
        )
    filtering = reward.dynamic_filtering
    if filtering and plan.rollout.n_samples_per_prompt == 1:
        found.append(
            "reward.dynamic_filtering with rollout.n_samples_per_prompt 1: a group's mean is one "
            f"score, and only one strictly between {list(filtering.keep)} is trained on"
        )
    if filtering and algorithm.ignores_rewards:
        found.append(
            "reward.dynamic_filtering leaves groups out by their scores, but algorithm.distill "
            "trains on no reward, so that the teacher is not learned from where a task is all "
            "right or all wrong; remove it, or set algorithm.distill.with_reward: true"
        )
    unpaid = reward.env_weight == 0.0 and not reward.functions and not reward.models
    if unpaid and not algorithm.ignores_rewards:
        found.append(
            "reward.env_weight is 0 and there are neither reward.functions nor reward.models: "
            "every reward is 0 and nothing is learned"
        )
    return (
        found
        + rarely_meant(trainer, reward, loss)
        + _idle_critic(trainer.critic, algorithm)
        + _best_checkpoints(plan.checkpoint, plan.eval, steps=plan.train.steps)
    )


def notes(trainer: TrainerPlan, reward: RewardSection) -> list[str]:
    """Values that a name of the algorithm has brought along and that its blocks do not show."""
    algorithm = trainer.algorithm
    found = algorithm.brought_along()
    usual = reward_of_preset(algorithm.preset, budget=trainer.rollout.max_response_tokens)
    for key in usual:
        section = getattr(reward, key)
        values = {} if section is None else section.model_dump(mode="json", exclude_none=True)
        shown = ", ".join(f"{name} {value}" for name, value in values.items()) or "off"
        found.append(f"preset {algorithm.preset}, reward.{key}: {shown}")
    return found


def check_estimator(plan: TrainerPlan) -> None:
    """Find the advantage estimator of a run, and check that it has the groups it needs.

    Raises:
        ConfigError: there is no such estimator, or it compares siblings and there are none.
    """
    algorithm, section = plan.algorithm, plan.rollout
    spec = find_estimator(algorithm.advantage_estimator, base=plan.base)
    compares = spec.compares_siblings and not algorithm.ignores_rewards
    if compares and section.n_samples_per_prompt < 2 and plan.train.steps > 0:
        raise ConfigError(
            f"rollout.n_samples_per_prompt is {section.n_samples_per_prompt}, but advantage "
            f"estimator {spec.name!r} compares siblings and needs at least 2 rollouts per prompt; "
            "raise it, declare compares_siblings=False, or take preset: reinforce++ or ppo"
        )


def _loss_doubts(algorithm: AlgorithmSection, loss: LossSpec) -> list[str]:
    """Settings that do not go with what the policy loss declares."""
    name = algorithm.policy_loss
    found = []
    if loss.rollout_ratio and algorithm.loss_agg_mode != "seq-mean-token-mean":
        found.append(
            f"policy_loss {name} with loss_agg_mode {algorithm.loss_agg_mode}: its ratio is one of "
            "whole sequences; use seq-mean-token-mean"
        )
    default = AlgorithmSection()
    for key in loss.ignored_keys:
        if getattr(algorithm, key) != getattr(default, key):
            found.append(f"{key} has no effect with policy_loss {name}")
    uncorrected = algorithm.is_correction_type == "none" and loss.correction == "none"
    if algorithm.is_correction_threshold is not None and (
        algorithm.old_log_probs == "rollout" or (uncorrected and loss.reads is not None)
    ):
        found.append("is_correction_threshold has no effect with is_correction_type none")
    return found


def _idle_critic(critic: CriticSection, algorithm: AlgorithmSection) -> list[str]:
    """A critic that was set beside an algorithm that has none."""
    if algorithm.needs_values or critic == CriticSection():
        return []
    name = algorithm.advantage_estimator
    return [f"critic: with algorithm.advantage_estimator {name} there is no critic"]


def _best_checkpoints(
    checkpoint: CheckpointSection, evaluation: EvalSection, *, steps: int
) -> list[str]:
    """Reasons why no checkpoint, or only the last, would be among the best."""
    kept, by = checkpoint.best_count, checkpoint.best_by
    if steps == 0 or not (kept or by):
        return []
    found = []
    keys = metric_keys(evaluation.n_samples)
    if by and by not in {f"eval/{name}/{key}" for name in evaluation.datasets for key in keys}:
        found.append(
            f"checkpoint.keep_best: {by!r} is no metric of an evaluation; they are called "
            f"eval/NAME/ and {', '.join(keys)}"
        )
    if kept and not evaluation.every_steps:
        found.append(
            f"checkpoint.keep_best is {kept}, but eval.every_steps is 0: only the last step is "
            "evaluated; set eval.every_steps"
        )
    return found


async def algorithm(trainer: TrainerPlan, plan: SchedulePlan) -> Finding | str:
    """The blocks of the algorithm, and doubts about it."""
    found = doubts(trainer, plan)
    blocks = describe_blocks(trainer.algorithm, critic=trainer.critic, train=trainer.train)
    text = "\n".join([f"preset {trainer.algorithm.preset}", *blocks, *notes(trainer, plan.reward)])
    if found:
        return Finding(name="algorithm", status=Status.WARN, detail="\n".join([*found, text]))
    return text
