"""Values that run, and with which training surely does something else than was wanted.

Each sentence names the key and its value, why that is doubted, and what to set.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import TYPE_CHECKING

from agentrl.config.algorithm import AlgorithmSection, CriticSection
from agentrl.config.plan import TrainerPlan
from agentrl.config.presets import PRESETS, Bounds
from agentrl.config.reward import RewardSection
from agentrl.config.training import TrainSection
from agentrl.estimators import ESTIMATORS

if TYPE_CHECKING:
    from agentrl.train.losses import LossSpec

_SEQUENCE_CLIP = 0.01
"""Clip of a ratio of whole sequences above which it never acts; the paper's is 3e-4
(arXiv 2507.18071, 5.1)."""
_NO_LOWER_BOUND = ("tis_reinforce", "sapo")
"""Losses that do not read `eps_clip_low`."""
_FAR = 4
"""The response budget over the horizon from which the horizon is far below it."""
_LARGE_KL = 1.0
"""Nats a token that no policy that still writes the language is away from its reference."""


def rarely_meant(trainer: TrainerPlan, reward: RewardSection, loss: LossSpec) -> list[str]:
    """All doubts about the numbers of a run.

    Args:
        trainer: of the run.
        reward: its scores.
        loss: that its algorithm names.
    """
    algorithm, budget = trainer.algorithm, trainer.rollout.max_response_tokens
    return [
        *_clip_bounds(algorithm, loss),
        *_horizon(trainer.asked_horizon, algorithm, budget=budget),
        *_other_family(algorithm),
        *_kl(algorithm),
        *_slow_critic(algorithm, trainer.critic, trainer.train),
        *_clips(reward, algorithm),
    ]


def _clip_bounds(algorithm: AlgorithmSection, loss: LossSpec) -> Iterator[str]:
    if algorithm.policy_loss in _NO_LOWER_BOUND:
        return
    low, high = algorithm.eps_clip_low, algorithm.eps_clip_high
    assert low is not None
    assert high is not None
    if low > high:
        yield (
            f"algorithm.eps_clip_low is {low:g}, above eps_clip_high {high:g}: unlikely tokens may "
            "lose more than they may gain, which drains the entropy; set eps_clip_high to at least "
            f"{low:g}, as 0.28 above 0.2 (DAPO's clip-higher)"
        )
    if loss.rollout_ratio and max(low, high) > _SEQUENCE_CLIP:
        yield (
            f"algorithm.eps_clip_low is {low:g} and eps_clip_high {high:g}, but the ratio of "
            f"policy_loss {algorithm.policy_loss} is the mean of a whole sequence, which moves by "
            "about a thousandth in a step: such bounds hardly ever act; set eps_clip_low: 0.0003 "
            "and eps_clip_high: 0.0004"
        )


def _horizon(asked: int | None, algorithm: AlgorithmSection, *, budget: int) -> Iterator[str]:
    if asked is None:
        return
    if algorithm.loss_agg_mode != "seq-mean-token-sum-norm":
        yield (
            f"algorithm.horizon is {asked}, which has no effect with loss_agg_mode "
            f"{algorithm.loss_agg_mode}: only seq-mean-token-sum-norm divides by it; remove it"
        )
    elif asked * _FAR <= budget:
        yield (
            f"algorithm.horizon is {asked}, and a response may have {budget} tokens "
            "(rollout.max_response_tokens): the loss of a long one is "
            f"{budget / asked:g} times what the learning rate was chosen for; remove it, or set "
            f"horizon: {budget}"
        )


def _other_family(algorithm: AlgorithmSection) -> Iterator[str]:
    name, preset = algorithm.advantage_estimator, algorithm.preset
    usual = ESTIMATORS.find(PRESETS[preset]["advantage_estimator"])
    if usual.needs_critic and not algorithm.needs_values:
        own = [key for key, blocks in PRESETS.items() if blocks["advantage_estimator"] == name]
        yield (
            f"algorithm.preset is {preset}, and advantage_estimator {name} needs no critic: none "
            f"is trained, and this is not {preset}; set advantage_estimator: {usual.name}, or "
            f"preset: {' or '.join(own) or 'one without a critic'}"
        )
    if algorithm.needs_values and not usual.needs_critic:
        yield (
            f"algorithm.preset is {preset}, which has no critic, and advantage_estimator {name} "
            f"trains one; set preset: ppo, or advantage_estimator: {usual.name}"
        )


def _kl(algorithm: AlgorithmSection) -> Iterator[str]:
    if not algorithm.needs_reference:
        return
    update = algorithm.reference_update
    if update is not None and update.every_steps == 1 and update.polyak == 1.0:
        yield (
            "algorithm.reference_update copies the policy into the reference after every step "
            "(every_steps 1, polyak 1): the KL begins every step at 0, and kl_coef "
            f"{algorithm.kl_coef:g} holds nothing; set every_steps: 100, or polyak: 0.05"
        )
    target = algorithm.kl_target
    if target is None:
        return
    highest = max(target) if isinstance(target, tuple) else target
    if highest > _LARGE_KL:
        shown = list(target) if isinstance(target, tuple) else target
        usual = "[0.05, 0.2]" if isinstance(target, tuple) else "0.05"
        yield (
            f"algorithm.kl_target is {shown} nats a token, which no useful policy is "
            "away from its reference (trainers that add the KL up over a rollout have numbers "
            f"like 6): the weight would fall to nothing; set kl_target: {usual}"
        )


def _slow_critic(
    algorithm: AlgorithmSection, critic: CriticSection, train: TrainSection
) -> Iterator[str]:
    # Adapters learn at ten times the rate of whole matrices, so the two say nothing of each other.
    alike = (train.lora is None) == (critic.lora is None)
    if not algorithm.needs_values or not alike:
        return
    if critic.learning_rate < train.learning_rate:
        yield (
            f"critic.learning_rate is {critic.learning_rate:g}, below train.learning_rate "
            f"{train.learning_rate:g}: the policy outruns the values that it is judged by; set "
            f"critic.learning_rate: {10 * train.learning_rate:g}"
        )


def _clips(reward: RewardSection, algorithm: AlgorithmSection) -> Iterator[str]:
    normalised = {
        "clip": (reward.clip, reward.normalize, "reward.normalize"),
        "clip_shaped": (
            reward.clip_shaped,
            algorithm.estimator.divides_by_spread,
            f"advantage_estimator {algorithm.advantage_estimator}",
        ),
    }
    for key, (bounds, whitened, by) in normalised.items():
        if bounds is None or not whitened:
            continue
        share = _outside(bounds)
        if share > 0.5:
            yield (
                f"reward.{key} is {list(bounds)} in standard deviations, since {by} comes before "
                f"it: about {100 * share:.3g} % of rewards would lie on a bound and teach little; "
                f"set reward.{key}: [-10, 10]"
            )


def _outside(bounds: Bounds) -> float:
    """Share of normally distributed numbers of mean 0 and deviation 1 that bounds change."""
    normal = NormalDist()
    return normal.cdf(bounds[0]) + 1.0 - normal.cdf(bounds[1])
