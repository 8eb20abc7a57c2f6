"""A reward model of a run, or an ensemble, as a function of finished rollouts.

    score of each member        at the last token that the policy sampled
    z_k = scale_k(score_k)      (score / T - mean) / std, by its reward_scale.json
    value = mean_k z_k - disagreement * std_k z_k - uncertainty * mean_k s_k

A model with several heads counts as so many members, whose scores come from one pass.

Legend: `_N` rows, `_K` members, `_O` outputs of a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agentrl.batch.examples import ScoredTokens
from agentrl.batch.records import FloatArray
from agentrl.errors import ConfigError, GraderError
from agentrl.fit.reward_models.score_queue import ScoreQueue
from agentrl.reward.rm_version import RM_VERSION
from agentrl.reward.scale import RewardScale, ensemble_reward
from agentrl.types import RewardValue, Task, Trajectory

if TYPE_CHECKING:
    from agentrl.models.proof import ModelProof

BETWEEN = "std_between"
"""Part with the standard deviation between the members of an ensemble, in units of the value."""
DEVIATION = "deviation"
"""Part with the deviation that the model itself gives, in units of the value."""


class RowScorer(Protocol):
    """Scores token rows, as `ScoreModel` does."""

    @property
    def outputs(self) -> int:
        """1, or 2 where a deviation comes with the reward."""
        ...

    @property
    def heads(self) -> int:
        """1, or more where each row gets the outputs of so many heads."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Most packed tokens of a pass."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of token ids that it reads."""
        ...

    def scores(self, rows: Sequence[ScoredTokens]) -> FloatArray:
        """[N, O] Scores of rows; those of several heads side by side."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardMember:
    """One reward model, and the scale of each of its heads."""

    path: str
    """Name for messages."""
    model: RowScorer
    """Gives raw scores."""
    scales: Sequence[RewardScale]
    """Make rewards of them: one for each head."""


class RolloutRewards:
    """Values finished rollouts; those that end together are scored in one batch, if they fit."""

    def __init__(
        self,
        members: Sequence[RewardMember],
        *,
        disagreement: float = 0.0,
        uncertainty: float = 0.0,
        version: int | None = None,
    ) -> None:
        """Take the members.

        Args:
            members: at least one, each with the same number of outputs.
            disagreement: deviations between members that are taken off.
            uncertainty: deviations of the models themselves that are taken off.
            version: of a model that is refreshed, a part of every value; None for no such part.

        Raises:
            ConfigError: an uncertainty without a model that gives a deviation, or a disagreement
                with a single model of one head.
        """
        self._disagreement, self._uncertainty = disagreement, uncertainty
        self._take(members, version)
        self.queue: ScoreQueue[Sequence[FloatArray]] = ScoreQueue(
            self._compute, batch_tokens=self._longest + 1
        )
        """Rollouts that wait; close it when no rollout is under way."""

    @property
    def version(self) -> int | None:
        """Version of the members that score now; None of a model that is not refreshed."""
        return self._version

    async def replace(self, members: Sequence[RewardMember], version: int) -> None:
        """Score with other members from now on; no rollout may be under way.

        Args:
            members: in place of the present ones.
            version: of them.

        Raises:
            ConfigError: as when this was made; the present members stay.
        """
        await self.queue.close()
        self._take(members, version)
        self.queue.batch_tokens = self._longest + 1

    def _take(self, members: Sequence[RewardMember], version: int | None) -> None:
        gaussian = all(member.model.outputs > 1 for member in members)
        if self._uncertainty and not gaussian:
            plain = next(m.path for m in members if m.model.outputs == 1)
            raise ConfigError(
                f"uncertainty is {self._uncertainty:g}, but the reward model {plain!r} gives no "
                f"deviation; write a posterior beside it with `agentrl rm posterior {plain} --data "
                "PAIRS`, fit it with objective.loss: purm, or set uncertainty to 0"
            )
        check_disagreement(self._disagreement, sum(m.model.heads for m in members))
        self._members, self._gaussian, self._version = tuple(members), gaussian, version
        self._longest = min(member.model.batch_tokens for member in members) - 1
        self._vocabulary = min(member.model.vocabulary for member in members)

    @property
    def proofs(self) -> dict[str, ModelProof | None]:
        """Comparison of each member with its own forward pass, by path; None without one."""
        return {member.path: getattr(member.model, "proof", None) for member in self._members}

    async def value(self, trajectory: Trajectory, task: Task) -> RewardValue:
        """The value of a finished rollout, with the parts `std_between`, `deviation`, `rm_version`.

        Args:
            trajectory: its final row.
            task: of the rollout.

        Raises:
            GraderError: nothing was sampled, the row does not fit into a batch, a token is none
                of the model's, or a score is not finite.
        """
        row = scored_row(trajectory)
        tokens = len(row.prompt_ids) + len(row.ids)
        if tokens > self._longest:
            raise GraderError(
                f"the rollout has {tokens} tokens, but a batch of the reward model holds "
                f"{self._longest}; lower rollout.max_context_tokens"
            )
        if unknown := unknown_token(row, self._vocabulary):
            raise GraderError(unknown)
        return self._combined(await self.queue.score(row))

    def _compute(self, rows: Sequence[ScoredTokens]) -> list[Sequence[FloatArray]]:
        """[N] of [K] of [O] scores."""
        by_member = [member.model.scores(rows) for member in self._members]
        return list(zip(*by_member, strict=True))

    def _combined(self, scores_KO: Sequence[FloatArray]) -> RewardValue:
        for member, numbers in zip(self._members, scores_KO, strict=True):
            if not np.isfinite(numbers).all():
                raise GraderError(
                    f"{member.path} gives {numbers.tolist()}, expected finite numbers"
                )
        heads = [
            (scale, own)
            for member, numbers in zip(self._members, scores_KO, strict=True)
            for scale, own in zip(
                member.scales, numbers.reshape(member.model.heads, -1), strict=True
            )
        ]
        white = [[float(scale.normalised(own[0]))] for scale, own in heads]
        values, between = ensemble_reward(white, self._disagreement)
        value, parts = float(values[0]), {}
        if len(heads) > 1:
            parts[BETWEEN] = float(between[0])
        if self._gaussian:
            deviation = float(np.mean([own[1] / (s.temperature * s.std) for s, own in heads]))
            parts[DEVIATION] = deviation
            value -= self._uncertainty * deviation
        if self._version is not None:
            parts[RM_VERSION] = float(self._version)
        return RewardValue(value=value, parts=parts)


def check_disagreement(disagreement: float, members: int) -> None:
    """Refuse a disagreement where there is nothing to disagree with.

    Args:
        disagreement: as for `RolloutRewards`.
        members: models, with several heads as many.

    Raises:
        ConfigError: a single one.
    """
    if disagreement and members == 1:
        raise ConfigError(
            f"disagreement is {disagreement:g}, but one reward model of one head cannot disagree; "
            "give path a list of at least 2, the run of an ensemble, or a model of several heads, "
            "or set it to 0"
        )


def unknown_token(row: ScoredTokens, vocabulary: int) -> str:
    """Reason why a model cannot read a row; empty where it can.

    The head of a policy may have more ids than its tokenizer, as padding, and sample one of them.

    Args:
        row: the tokens.
        vocabulary: number of ids that the model reads.
    """
    largest = max((*row.prompt_ids, *row.ids), default=0)
    if largest < vocabulary:
        return ""
    return f"token id {largest} is none of the {vocabulary} that the reward model reads"


def scored_row(trajectory: Trajectory) -> ScoredTokens:
    """The tokens of a rollout that a reward model reads: up to the last sampled one.

    Raises:
        GraderError: nothing was sampled.
    """
    mask = trajectory.response_mask
    end = max((index for index, sampled in enumerate(mask) if sampled), default=-1) + 1
    if not end:
        raise GraderError("the rollout has no sampled token that a reward model could score")
    return ScoredTokens(prompt_ids=trajectory.prompt_ids, ids=trajectory.response_ids[:end])
