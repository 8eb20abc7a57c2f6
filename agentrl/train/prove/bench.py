"""The rollouts, policies and settings that the checks of a loss share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.batch.records import LossNeeds, PackedBatch
from agentrl.config.presets import Bounds
from agentrl.config.schema import AlgorithmSection
from agentrl.train.prove.evaluate import Division, UpdateOutcome, build_update, evaluate
from agentrl.train.prove.policies import Policies
from agentrl.types import TrajectoryGroup

WHOLE = Division(name="whole")
LIKELIEST = 8
"""Likeliest tokens of a teacher that a proof looks at; the formula has no other number in it."""


def top_k_of(algorithm: AlgorithmSection) -> int:
    """`algorithm.distill.top_k`; 0 without a teacher."""
    return 0 if algorithm.distill is None else algorithm.distill.top_k


def with_few_likeliest(algorithm: AlgorithmSection) -> AlgorithmSection:
    """The algorithm with at most `LIKELIEST` of a teacher's tokens."""
    if algorithm.distill is None:
        return algorithm
    distill = algorithm.distill.model_copy(
        update={"top_k": min(algorithm.distill.top_k, LIKELIEST)}
    )
    return algorithm.model_copy(update={"distill": distill})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything that checks of one set of rollouts work with."""

    policies: Policies
    """Policies that are asked about the rollouts' tokens."""
    algorithm: AlgorithmSection
    """Resolved."""
    needs: LossNeeds
    """Declared by the loss."""
    clip_shaped: Bounds | None
    """`reward.clip_shaped`."""
    groups: list[TrajectoryGroup]
    """The rollouts."""

    def update(
        self,
        division: Division = WHOLE,
        groups: list[TrajectoryGroup] | None = None,
        needs: LossNeeds | None = None,
    ) -> PackedBatch:
        """Build the update, by default in one micro-batch."""
        return build_update(
            groups or self.groups,
            division,
            policies=self.policies,
            algorithm=self.algorithm,
            needs=needs or self.needs,
            clip_shaped=self.clip_shaped,
        )

    def outcome(
        self,
        update: PackedBatch,
        *,
        ranks: int = 1,
        poison: Mapping[str, float] | None = None,
        dtypes: bool = True,
    ) -> UpdateOutcome:
        """Evaluate an update against the older policy."""
        return evaluate(
            update,
            policies=self.policies,
            algorithm=self.algorithm,
            needs=self.needs,
            ranks=ranks,
            poison=poison,
            dtypes=dtypes,
        )

    def on_policy(self, update: PackedBatch) -> UpdateOutcome:
        """Evaluate an update at ratio 1, without KL penalty, entropy bonus and teacher."""
        without = {"kl_coef": 0.0, "entropy_coef": 0.0, "distill": None}
        free = self.algorithm.model_copy(update=without)
        return evaluate(
            update, policies=self.policies, algorithm=free, needs=self.needs, on_policy=True
        )
