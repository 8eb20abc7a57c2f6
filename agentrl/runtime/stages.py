"""The interfaces that a driver calls, in one process or on many machines.

    RolloutStage   task   -> GroupHandle          agent loops on CPUs
    LearnStage     groups -> MetricBag            store, batch, optimizer
    EngineStage    version -> engines sample it   pause, move weights, resume

A driver holds handles: a report of what it must know, and the group itself wherever that lies. In
one process that is the same object; across machines it is a reference, and trajectories travel from
the worker that made them to the ranks that train on them without passing through the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentrl.batch.ledger import spent_before
from agentrl.fit.reward_models.versions import RewardModelUsers
from agentrl.metrics import MetricBag
from agentrl.rollout.under_way.in_flight import LookInFlight
from agentrl.runtime.engine_wait import Guard
from agentrl.serving.records import EngineStats
from agentrl.types import (
    TERMINATION_RULES,
    SamplingParams,
    Task,
    Termination,
    TerminationRule,
    TrajectoryGroup,
)
from agentrl.types.usage import LOST_SECONDS, LOST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """Report of one rollout for a driver, without its tokens."""

    rollout_id: str
    """Rollout id, as in its rows."""
    termination: Termination
    """Reason for its end."""
    detail: str
    """Which limit fired, or the error of an infrastructure failure."""
    verdict: float | None
    """Score, or the reward where the environment gives no score; None if it cannot be trusted."""
    tokens: int
    """Tokens the policy sampled, over all rows."""
    tokens_by_version: Mapping[int, int] = field(default_factory=dict[int, int])
    """The same by the weights that sampled them."""
    duration_s: float = 0.0
    """Wall time in seconds."""
    length: int = 0
    """Tokens of its prompts and responses, over all rows."""
    retried_tokens: int = 0
    """Tokens sampled in attempts before, which came to nothing."""
    retried_s: float = 0.0
    """Wall time of these attempts in seconds."""

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that sampled one of them; None without a sampled token."""
        return min(self.tokens_by_version, default=None)

    @property
    def rule(self) -> TerminationRule:
        """The rule of its termination for loss, baseline and reward."""
        return TERMINATION_RULES[self.termination]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """Report of one group for a driver, without its tokens."""

    group_id: str
    """Unique in the run."""
    task_id: str
    """`Task.id`."""
    rollouts: tuple[RolloutReport, ...]
    """Reports in order of their index, failed ones included."""

    @property
    def tokens(self) -> int:
        """Tokens the policy sampled."""
        return sum(rollout.tokens for rollout in self.rollouts)

    @property
    def length(self) -> int:
        """Tokens of prompts and responses, over all rows."""
        return sum(rollout.length for rollout in self.rollouts)

    @property
    def spent_tokens(self) -> int:
        """Tokens the policy sampled, attempts that came to nothing included."""
        return sum(rollout.tokens + rollout.retried_tokens for rollout in self.rollouts)

    @property
    def spent_s(self) -> float:
        """Wall time of its rollouts, each for itself, likewise."""
        return sum(rollout.duration_s + rollout.retried_s for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int | None:
        """The oldest weights that sampled a token; None without one."""
        known = [r.oldest_version for r in self.rollouts if r.oldest_version is not None]
        return min(known, default=None)


def report_of(group: TrajectoryGroup) -> GroupReport:
    """The report of a group."""
    reports = []
    for rows in group.rollouts():
        last = rows[-1]
        verdict = last.score if last.score is not None else last.reward
        versions: Counter[int] = Counter()
        for row in rows:
            versions.update(row.tokens_by_version)
        reports.append(
            RolloutReport(
                rollout_id=last.rollout_id,
                termination=last.termination,
                detail=last.termination_detail,
                verdict=verdict if last.rule.reward_trusted else None,
                tokens=sum(row.num_action_tokens for row in rows),
                tokens_by_version=dict(versions),
                length=sum(len(row.prompt_ids) + len(row.response_ids) for row in rows),
                duration_s=last.duration_s,
                retried_tokens=round(spent_before(rows[0], LOST_TOKENS)),
                retried_s=spent_before(rows[0], LOST_SECONDS),
            )
        )
    return GroupReport(group_id=group.group_id, task_id=group.task_id, rollouts=tuple(reports))


class GroupHandle(Protocol):
    """A finished group, wherever its tokens are."""

    @property
    def report(self) -> GroupReport:
        """Report of the group, without its tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """A group held in this process."""

    group: TrajectoryGroup
    """The whole group."""
    report: GroupReport
    """Report of the group."""

    @classmethod
    def of(cls, group: TrajectoryGroup) -> HeldGroup:
        """Report on `group` and hold it."""
        return cls(group=group, report=report_of(group))


class RolloutStage(Protocol):
    """The stage that rolls tasks out."""

    async def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> GroupHandle:
        """As `RolloutWorker.run_group`: never raises for a failed rollout."""
        ...

    def adopt(self, group: TrajectoryGroup) -> GroupHandle:
        """A handle of a group that was made earlier, for a replay."""
        ...

    def counts(self) -> MetricBag:
        """Metrics since the last call, without those of finished groups."""
        ...


class LearnStage(Protocol):
    """The stage that stores, batches and trains."""

    @property
    def version(self) -> int:
        """Steps trained, which is also the version of the weights."""
        ...

    @property
    def mid_step(self) -> bool:
        """Some updates of a step are made and others are not: nothing may be saved or synced."""
        ...

    async def learn_early(
        self, step: int, minibatch: int, groups: Mapping[int, GroupHandle]
    ) -> None:
        """Make the next update of a step of which other groups have not ended.

        `learn` is given the whole step afterwards and makes the other updates.

        Args:
            step: from 1.
            minibatch: index in the first pass over the step.
            groups: those that it needs, by their position in the step.

        Raises:
            AgentrlError: as `learn`.
        """
        ...

    async def learn(
        self,
        step: int,
        groups: Sequence[GroupHandle],
        *,
        stored: bool,
        on_progress: Callable[[int, int], None],
    ) -> MetricBag:
        """Train one step; the groups are on disk before its last update, and before anybody sees
        new weights.

        Args:
            step: from 1.
            groups: all of them go into the store, those with something to teach into the batch.
            stored: whether they came from the store and must not be written again.
            on_progress: called with `(micro-batches done, micro-batches of the step)`.

        Raises:
            StepAbandoned: after `abandon`.
            TrainError: a number that must not be trained on.
            OSError: the store could not be written.
        """
        ...

    def abandon(self) -> None:
        """Make `learn` give up at its next micro-batch, with `StepAbandoned`; for a run that ends.

        Where no update of the step was made, weights and state are those before it.
        """
        ...

    async def keep(self, step: int, kind: str, groups: Sequence[GroupHandle]) -> None:
        """Store groups that are not trained on."""
        ...

    async def hold(self) -> Callable[[Path], None]:
        """Hold weights and trainer state as they are now.

        Returns:
            Writes them and the tokenizer into a folder, once; blocks, from a thread beside the next
            steps. What fails on one rank keeps no other waiting, and is raised when all are done.
        """
        ...


class EngineStage(Protocol):
    """The stage that samples: one engine or a fleet."""

    guard: Guard
    """Set by the driver: cancels the wait of a sync for an engine, and nothing else."""

    @property
    def version(self) -> int:
        """The weights all serving engines sample from."""
        ...

    @property
    def shares_weights(self) -> bool:
        """They sample from the same tensors that training changes, or use its device in turn."""
        ...

    async def pause(self) -> None:
        """Stop producing tokens; what is in flight stays and goes on after `sync`."""
        ...

    async def sync(self, version: int) -> MetricBag:
        """Sample from the learner's weights of `version` from now on; resumes what is paused.

        Raises:
            SyncError: no engine has them.
            EngineError: none has them, and none came back.
            Interrupted: `guard` cancelled the wait for one that comes back.
        """
        ...

    def stats(self) -> Mapping[str, EngineStats]:
        """Latest counts of each engine by name, without a request."""
        ...


@dataclass(slots=True, kw_only=True)
class Stages:
    """The three stages of a run."""

    rollouts: RolloutStage
    """Runs the rollouts."""
    engines: EngineStage
    """Samples the turns of the rollouts."""
    engine_devices: int
    """Devices of each engine; a server of tensor parallel 4 has four."""
    learner: LearnStage
    """Trains the policy."""
    stop_token_ids: tuple[int, ...] = field(default=())
    """Ends an assistant turn."""
    reward_models: RewardModelUsers | None = None
    """Score rollouts with `reward.models`; None where nothing can be told to them."""
    in_flight: LookInFlight | None = None
    """Reports on the rollouts in flight and names so many of the oldest; None where none can."""
