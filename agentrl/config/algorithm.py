"""Algorithms as assemblies of blocks, and what happens to rewards before them.

A   what a rollout's reward is compared with         advantage_estimator
B   penalty for leaving the reference policy         kl_*, use_kl_loss
C   how rewards become advantages of tokens          advantage_estimator, gamma, lam
D   whitening over the whole batch                   whiten_advantages
E   policy loss, and correction for the sampler      policy_loss, eps_clip_*, is_correction_*
F   value loss of a critic                           section `critic`
G   several updates on the same rollouts             train.epochs_per_batch, train.minibatches
H   a teacher's word on every token                  distill

A preset names a known assembly; every block can be set beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.config.base import FiniteSection, Names
from agentrl.config.distill import DistillSection
from agentrl.config.presets import (
    ALIASES,
    IS_BOUNDS,
    OWN_OLD_POLICY,
    PRESETS,
    Bounds,
    IsCorrection,
    LossAggMode,
    Preset,
    brought_along,
)
from agentrl.config.training import AdapterSection
from agentrl.estimators import ESTIMATORS, EstimatorSpec

KL_WINDOW: Bounds = (0.05, 0.2)
"""Usual bounds of the KL, in nats a token."""


class ReferenceUpdate(FiniteSection):
    """A reference policy that follows the policy; a number alone is `every_steps`."""

    bare: ClassVar[str] = "every_steps"

    every_steps: int = Field(ge=1)
    """The reference follows the policy after every so many steps."""
    polyak: float = Field(default=1.0, gt=0, le=1)
    """Share of the policy in the reference at such an update; 1 copies it."""


class AlgorithmSection(FiniteSection):
    """Advantage and loss. `preset` names a known assembly; other keys override it."""

    preset: Preset = "dr_grpo"
    """`dr_grpo`, `grpo`, `rloo`, `reinforce++`, `reinforce++-baseline`, `ppo`, `gspo`, `cispo`,
    `tis_reinforce` or `dapo`. `agentrl config` prints the blocks it stands for. `dapo` also fills
    in `reward.dynamic_filtering` and `reward.overlong`."""
    advantage_estimator: Annotated[str | None, Names.CODE] = None
    """Blocks A and C: `reinforce` R, `reinforce_baseline` and `dr_grpo` R - mean, `rloo` R - mean
    of the others, `group_norm` (alias `grpo`) (R - mean) / (std + eps), `gae` with a critic, or an
    import string of one's own."""
    turn_rewards: Literal["sum", "return_to_go"] = "sum"
    """Credit of a turn: the `sum` of all rewards of its rollout, or what came from that turn on in
    time, against the whole returns of the siblings."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per action token with `gae` and `reinforce`; per turn where `return_to_go` credits
    turns without a critic. Elsewhere a rollout has one advantage, and nothing is discounted."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Lambda of `gae`."""
    whiten_advantages: bool | Literal["mean"] | None = None
    """Block D: zero mean and unit variance over all action tokens of the step; `mean` only removes
    the mean."""
    policy_loss: Annotated[str | None, Names.CODE] = None
    """Block E: `ppo_clip`, `gspo`, `cispo`, `sapo`, `tis_reinforce`, the name of a loss made known
    with `@policy_loss`, or an import string of one. Beside a preset of another loss it brings its
    own clip bounds and `loss_agg_mode`, as far as these are not set."""
    loss_agg_mode: LossAggMode | None = None
    """How per-token losses become one number."""
    horizon: int | None = Field(default=None, ge=1)
    """H of `seq-mean-token-sum-norm` in tokens; None takes `rollout.max_response_tokens`."""
    eps_clip_low: float | None = Field(default=None, gt=0, le=1)
    """Ratios below 1 - this are clipped."""
    eps_clip_high: float | None = Field(default=None, gt=0)
    """Ratios above 1 + this are clipped."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bounds the loss of a negative advantage at this times it; None does not."""
    importance_level: Literal["token", "sequence"] = "token"
    """Level of the ratio in `tis_reinforce`."""
    old_log_probs: Literal["rollout", "recompute", "decoupled"] | None = None
    """Denominator of the ratio: the sampler's log-probabilities; a forward pass before the first
    update of the step; or that pass, weighted by how it differs from the sampler (three policies:
    sampler, before the step, now). None is `recompute` with `tis_reinforce` and with a correction,
    which need both ratios, and else `rollout`."""
    is_correction_type: IsCorrection = "none"
    """Weight for the difference between sampler and trainer, with `old_log_probs: recompute`, which
    it brings along: `tis` clamps it, `icepop` drops tokens beyond the bounds, `seq-mask-tis` drops
    rollouts and clamps the rest."""
    is_correction_threshold: Bounds | None = None
    """Bounds of that weight; None takes those usual for its type. `tis_reinforce` brings `tis`
    along."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Block B: weight of the penalty for leaving the reference policy, which is the model the run
    began with; 0 loads no reference."""
    use_kl_loss: bool | None = None
    """Whether the penalty is a term of the loss, or taken off the reward of each token."""
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] | None = None
    """Estimator of the penalty: k1 in the reward, k2 or k3 in the loss; `k3+` has the value of k3
    and the gradient of k2."""
    kl_target: float | Bounds | None = None
    """KL in nats a token that the weight of the penalty is moved for: one number, as 0.05, is
    steered to in proportion; of two, as [0.05, 0.2], the weight is multiplied or divided by 1.5
    while the KL is outside. None leaves it at `kl_coef`."""
    kl_horizon: int = Field(default=10000, ge=1)
    """Rollouts over which a `kl_target` of one number acts."""
    reference_update: ReferenceUpdate | None = None
    """How the reference follows the policy; None keeps the model the run began with."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy of the policy, which is taken off the loss; 0 takes none. The entropy
    is that of all tokens at the temperature of the rollouts, in nats, and has the mean of
    `loss_agg_mode`."""
    mask_truncated: bool = False
    """Leave truncated rollouts out of the loss (they stay in the baseline)."""
    distill: DistillSection | None = None
    """Block H: on-policy distillation from a teacher; None has no teacher."""

    @model_validator(mode="before")
    @classmethod
    def _with_what_belongs_to_it(cls, value: Any) -> Any:
        """Set what a policy loss and a correction bring along, so that a stored run keeps it."""
        if not isinstance(value, Mapping):
            return value
        preset = value.get("preset", cls.model_fields["preset"].default)
        filled = dict(value)
        for brought in brought_along(preset, value).values():
            filled |= {key: own for key, own in brought.items() if filled.get(key) is None}
        return filled

    @field_validator("advantage_estimator", mode="before")
    @classmethod
    def _alias(cls, name: Any) -> Any:
        if not isinstance(name, str):
            return name
        name = ALIASES.get(name, name)
        ESTIMATORS.check(name, aliases=ALIASES)
        return name

    @field_validator("kl_target", mode="before")
    @classmethod
    def _one_or_two_numbers(cls, target: Any) -> Any:
        numbers = target if isinstance(target, list | tuple) and len(target) == 2 else [target]
        plain = [x for x in numbers if isinstance(x, int | float) and not isinstance(x, bool)]
        if target is not None and not (plain == list(numbers) and all(map(math.isfinite, plain))):
            raise ValueError(
                f"kl_target is {target}; expected a KL in nats a token, as 0.05, or the lowest and "
                "the highest, as [0.05, 0.2]"
            )
        if target is not None and len(plain) == 1 and plain[0] < 0:
            raise ValueError(f"kl_target is {target}, expected a KL of at least 0, as 0.05")
        return _at_least_zero("kl_target", (plain[0], plain[1])) if len(plain) == 2 else target

    @model_validator(mode="after")
    def _bounds(self) -> AlgorithmSection:
        if self.is_correction_threshold is not None:
            _at_least_zero("is_correction_threshold", self.is_correction_threshold)
        horizon = type(self).model_fields["kl_horizon"].default
        if self.kl_horizon != horizon and self.kl_control != "proportional":
            raise ValueError(
                f"kl_horizon is {self.kl_horizon}, but only a kl_target of one number acts over a "
                f"horizon, and kl_target is {self.kl_target}; set one, as 0.05, or leave "
                "kl_horizon out"
            )
        if self.kl_coef == 0.0 and (self.kl_target is not None or self.reference_update):
            raise ValueError(
                "kl_target and reference_update steer a penalty that is not there: kl_coef is "
                "0; set it, or leave them at their defaults"
            )
        loss, old = self._named("policy_loss"), self._named("old_log_probs")
        if self.is_correction_type != "none" and old != "recompute":
            raise ValueError(
                f"is_correction_type {self.is_correction_type!r} weighs the difference between "
                f"sampler and trainer, but old_log_probs is {old!r}; set it to 'recompute'"
            )
        if old == "rollout" and loss in OWN_OLD_POLICY:
            raise ValueError(
                f"policy_loss {loss!r} has a ratio to the policy before the step and one "
                "from there to the sampler, but old_log_probs is 'rollout', which makes them one "
                "and drops the cap on the second; set it to 'recompute', or leave it out"
            )
        self._rewards_are_used()
        return self

    def _rewards_are_used(self) -> None:
        """Refuse parts of the reward's credit beside a distillation that drops it."""
        if not self.ignores_rewards:
            return
        spec = ESTIMATORS.get(self._named("advantage_estimator"))
        if spec is not None and spec.needs_critic:
            raise ValueError(
                f"distill.with_reward is false, so no reward is trained on, but "
                f"advantage_estimator {spec.name!r} trains a critic of rewards; set "
                "with_reward: true, or an estimator without a critic, as preset: dr_grpo"
            )
        if self.needs_reference and not self._named("use_kl_loss"):
            raise ValueError(
                f"distill.with_reward is false, so no reward is trained on, but kl_coef "
                f"{self.kl_coef:g} is taken off the rewards; set use_kl_loss: true, "
                "with_reward: true, or kl_coef: 0"
            )

    def _named(self, key: str) -> Any:
        """The value of a key, or what the preset fills in for it."""
        own = getattr(self, key)
        return PRESETS[self.preset][key] if own is None else own

    def brought_along(self) -> list[str]:
        """Values that a policy loss or a correction has brought, a sentence for each of the two."""
        found: list[str] = []
        for source, brought in brought_along(self.preset, self.model_dump()).items():
            held = [f"{key} {own}" for key, own in brought.items() if getattr(self, key) == own]
            if held:
                found.append(
                    f"{source} beside preset {self.preset} brings {', '.join(held)}; a key that is "
                    "set wins"
                )
        return found

    def doubts(self) -> list[str]:
        """Settings that are allowed but rarely meant. Ask a resolved section.

        Those that depend on the policy loss are found where losses are known.
        """
        found = []
        if self.needs_reference and self.use_kl_loss and self.kl_estimator == "k1":
            found.append("kl_estimator k1 in the loss: its gradient is zero on average; use k2, k3")
        if self.needs_reference and not self.use_kl_loss and self.kl_estimator != "k1":
            found.append(
                f"kl_estimator {self.kl_estimator} in the reward: its sum is no estimate of the "
                "KL of the rollout; use k1"
            )
        by_turn = self.turn_rewards == "return_to_go"
        flat = self.estimator.per != "token" and not self.estimator.discounts_tokens
        if self.gamma != 1.0 and flat and not by_turn:
            found.append(
                f"gamma {self.gamma} has no effect with advantage_estimator "
                f"{self.advantage_estimator} and turn_rewards sum: a rollout has one advantage"
            )
        if by_turn and self.estimator.divides_by_spread:
            found.append(
                f"turn_rewards return_to_go with {self.advantage_estimator}: where whole returns "
                "are nearly equal, turns are divided by nearly nothing; use rloo or dr_grpo"
            )
        if by_turn and self.estimator.per == "rollout":
            found.append(
                f"turn_rewards return_to_go with {self.advantage_estimator}, which returns one "
                "advantage per rollout: all turns get the same"
            )
        return found + self._idle_keys()

    def _idle_keys(self) -> list[str]:
        """Keys that were set and that nothing reads in this assembly."""
        idle = {
            f"lam has no effect with advantage_estimator {self.advantage_estimator}": self.lam
            != AlgorithmSection.model_fields["lam"].default
            and not self.needs_values,
        }
        return [text for text, found in idle.items() if found]

    def resolved(self, *, horizon: int) -> AlgorithmSection:
        """Every None filled in from the preset, with `horizon` for the `horizon` of its own."""
        known = PRESETS[self.preset]
        filled: dict[str, Any] = {
            name: value for name, value in known.items() if getattr(self, name) is None
        }
        if self.use_kl_loss is not None and self.kl_estimator is None:
            filled["kl_estimator"] = "k3" if self.use_kl_loss else "k1"
        if self.is_correction_threshold is None and self.is_correction_type != "none":
            filled["is_correction_threshold"] = IS_BOUNDS[self.is_correction_type]
        return self.model_copy(update={**filled, "horizon": self.horizon or horizon})

    @property
    def estimator(self) -> EstimatorSpec:
        """Declaration of the advantage estimator, of a resolved section.

        Raises:
            ConfigError: there is no such estimator, or its file was named relative to a folder that
                `find_estimator` has not received yet.
        """
        return ESTIMATORS.find(self.advantage_estimator)

    @property
    def needs_values(self) -> bool:
        """True if advantages come from a critic; of a resolved section."""
        return self.estimator.needs_critic

    @property
    def kl_control(self) -> Literal["fixed", "proportional", "window"]:
        """Kind of control of the weight of the KL penalty."""
        if self.kl_target is None:
            return "fixed"
        return "window" if isinstance(self.kl_target, tuple) else "proportional"

    @property
    def needs_reference(self) -> bool:
        """True if anything needs the reference policy."""
        return self.kl_coef > 0.0

    @property
    def ignores_rewards(self) -> bool:
        """True if a teacher alone is learned from."""
        return self.distill is not None and not self.distill.with_reward

    @property
    def one_advantage(self) -> bool:
        """True if all tokens of a rollout have the same advantage; of a resolved section."""
        discounted = self.estimator.discounts_tokens and self.gamma != 1.0
        return (
            self.estimator.per != "token"
            and (self.distill is None or self.distill.top_k > 0)
            and self.turn_rewards == "sum"
            and not self.credit_needs_model
            and not discounted
        )

    @property
    def credit_needs_model(self) -> bool:
        """True if advantages need numbers of a model; of a resolved section."""
        return self.needs_values or (self.needs_reference and not self.use_kl_loss)


class CriticSection(FiniteSection):
    """Block F: the value function, where the advantage estimator needs one, as `gae`."""

    path: Annotated[str | None, Names.MODEL] = None
    """Checkpoint to begin from, a reward model with a `score` head or a language model; None takes
    `model.path`. A `reward_scale.json` beside a reward model becomes part of its head, so that it
    predicts the reward of `reward.models`. Relative folders start at the folder of this file."""
    lora: int | None = Field(default=None, ge=1)
    """Rank of adapters, on every linear layer, that are trained instead of the weights of the
    critic's layers; None trains all. Its value head is trained either way."""
    learning_rate: float = Field(default=1e-5, gt=0)
    """Peak learning rate of the critic; the shape is that of `train.schedule`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps at the start in which only the critic is trained."""
    value_clip: float | None = Field(default=0.2, gt=0)
    """A value may move this far from what it was before the step until its loss no longer falls;
    None does not clip."""

    @property
    def adapters(self) -> AdapterSection | None:
        """The adapters of rank `lora`."""
        return None if self.lora is None else AdapterSection(rank=self.lora)


def _at_least_zero(name: str, bounds: Bounds) -> Bounds:
    if not 0 <= bounds[0] < bounds[1]:
        raise ValueError(f"{name} is {list(bounds)}, expected [low, high], 0 <= low < high")
    return bounds
