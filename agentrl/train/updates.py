"""One update: gradients of policy and critic, a look at both, then the weights of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.batch.records import PackedBatch
from agentrl.metrics.bag import MetricBag
from agentrl.train.backends.agreement import on_every_rank
from agentrl.train.critic import ValuePass
from agentrl.train.gradients import finite_norm
from agentrl.train.meter.phases import phase
from agentrl.train.policy_gradient import MicroBatchProgress, PolicyLoss, PolicyPass


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """Computes every update of a step, and collects its numbers."""

    policy: PolicyPass
    """Always there: it knows who the ranks are."""
    value: ValuePass | None
    """None without a critic."""
    only_critic: bool
    """Whether the policy rests while the critic warms up."""
    policy_rates: Sequence[float]
    """Learning rate of the policy in each update of the step."""
    critic_rates: Sequence[float]
    """Learning rates of the critic; empty without one."""
    tokens: MetricBag
    """Counts over the tokens of this rank; to be merged over the ranks."""
    metrics: MetricBag
    """Counts over updates, the same on every rank."""
    progress: MicroBatchProgress
    """Told of every micro-batch of this rank."""
    before_moving: Callable[[], None] = lambda: None
    """Called before each update moves weights."""

    def clear_gradients(self) -> None:
        """Start an update, or give one up."""
        self.policy.backend.clear_gradients()
        if self.value is not None:
            self.value.backend.clear_gradients()

    def run(
        self, index: int, update: PackedBatch, part: PackedBatch, *, compare_sampler: bool
    ) -> None:
        """Make one update; without any gradient the weights and moments stay as they are.

        Args:
            index: of the update in the step, from 0.
            update: the whole, or what this rank was given of it.
            part: this rank's share.
            compare_sampler: measure how far the old policy is from the sampler.

        Raises:
            TrainError: a number or gradient that is not finite; no weight has moved.
        """
        self.clear_gradients()
        losses = on_every_rank(
            self.policy.backend, lambda: self._losses(part, compare_sampler=compare_sampler)
        )
        if not update.rows:
            self.metrics.sum("train/updates_skipped", 1)
            return
        # Both gradients are looked at before any weight moves.
        with phase("gradients over the ranks, and their norm"):
            policy_norm = 0.0 if self.only_critic else finite_norm(self.policy, update, part)
            value_norm = 0.0 if self.value is None else finite_norm(self.value, update, part)
        with phase("optimizer"):
            self.before_moving()
            if not self.only_critic:
                rate = self.policy_rates[index]
                self._move_policy(rate, policy_norm, [loss.policy for loss in losses])
            if self.value is not None:
                rate = self.critic_rates[index]
                self._move_critic(self.value, rate, value_norm, [loss.value for loss in losses])

    def _losses(self, part: PackedBatch, *, compare_sampler: bool) -> _Losses:
        policy = PolicyLoss(total=0.0, penalty=0.0, bonus=0.0)
        if not self.only_critic:
            policy = self.policy.accumulate(
                part, self.tokens, compare_sampler=compare_sampler, progress=self.progress
            )
        value = 0.0
        if self.value is not None:
            value = self.value.accumulate(part, self.tokens, progress=self.progress)
        return _Losses(policy=policy, value=value)

    def _move_policy(self, rate: float, norm: float, losses: Sequence[PolicyLoss]) -> None:
        self.policy.backend.step(learning_rate=rate, grad_norm=norm)
        self.metrics.sum("train/updates", 1)
        self.metrics.mean("train/loss", sum(loss.total for loss in losses))
        self.metrics.mean("train/grad_norm", norm)
        algorithm = self.policy.algorithm
        if algorithm.needs_reference and algorithm.use_kl_loss:
            self.metrics.mean("train/kl_loss", sum(loss.penalty for loss in losses))
        if algorithm.entropy_coef:
            self.metrics.mean("train/entropy_loss", sum(loss.bonus for loss in losses))

    def _move_critic(
        self, value: ValuePass, rate: float, norm: float, losses: Sequence[float]
    ) -> None:
        value.backend.step(learning_rate=rate, grad_norm=norm)
        self.metrics.mean("critic/vf_loss", sum(losses))
        self.metrics.mean("critic/grad_norm", norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Losses:
    """What one rank adds to the losses of an update."""

    policy: PolicyLoss
    """0 while the policy rests."""
    value: float
    """0 without a critic."""
