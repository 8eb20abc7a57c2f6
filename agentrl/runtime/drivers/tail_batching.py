"""The synchronous driver with oversampling: the longest rollouts do not hold a step up.

    plan -> run groups -> the first B that teach -> store, batch, train -> sync -> log -> save
     ^            |                                                                     |
     |            +-- the others are cancelled and deferred                             |
     +----------------------------------------------------------------------------------+

A round begins more groups than it trains; as soon as B have ended the others are cancelled and
deferred. Once B are deferred, or the epoch has no B new tasks left, a round of their own finishes
them and cancels none. Strictly on-policy: every token of a step comes from the weights it trains.
Every task is trained once an epoch, and the last task of an epoch no later than in the step with
the first of the next. What was sampled of a cancelled group is thrown away.

With `reward.dynamic_filtering` the others of a round go on until B groups that teach have ended:
they take the places of groups that teach nothing. Where a whole round leaves places open, a step
takes further rounds, up to `reward.dynamic_filtering.rounds`.

Inside an epoch the order is no longer random: tasks that end soon come early and long ones late.

A signal wakes the rollouts, which are cancelled and clean up; an optimizer step and a checkpoint
always run to their end. Resume: as in `AsynchronousRun`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentrl.batch.ledger import note_aborted
from agentrl.config.fleet import ScheduleSection
from agentrl.config.reward import RewardSection
from agentrl.config.schema import RolloutSection
from agentrl.data.tasks.cursor import Claim
from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.concurrency import GroupGate, RolloutLimit
from agentrl.runtime.drivers.driver import DriverParts, StepLoop
from agentrl.runtime.drivers.filters.dynamic_filter import (
    is_filtered,
    missing_groups,
    most_rounds,
    note_rounds,
)
from agentrl.runtime.drivers.groups import note_rollouts, note_speed
from agentrl.runtime.stages import GroupHandle
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The groups that one round begins."""

    new: int
    """Tasks that were never begun; 0 for a round of deferred tasks, which is filled up."""
    groups: int
    """Groups that begin; those beyond B are cancelled."""


def plan_round(*, size: int, oversample: float, deferred: int, left: int) -> Round:
    """Plan the groups of the next round.

    Args:
        size: B, groups that a step trains.
        oversample: groups begun per group trained.
        deferred: tasks whose groups were cancelled.
        left: new tasks of this epoch.

    Example:
        >>> plan_round(size=4, oversample=1.5, deferred=3, left=20)
        Round(new=6, groups=6)
        >>> plan_round(size=4, oversample=1.5, deferred=5, left=14)
        Round(new=0, groups=4)
    """
    if deferred >= size or left < size:
        return Round(new=0, groups=size)
    new = min(math.ceil(oversample * size), left)
    return Round(new=new, groups=new)


class TailBatchingRun(StepLoop):
    """On-policy steps of the groups that end first, and rounds of their own for the others."""

    def __init__(
        self,
        parts: DriverParts,
        *,
        rollout: RolloutSection,
        reward: RewardSection,
        schedule: ScheduleSection,
    ) -> None:
        """Begin nothing yet.

        Args:
            parts: standing where earlier processes of the run have stopped.
            rollout: groups of a step and rollouts of a group.
            reward: which groups are replaced, and how often.
            schedule: how many more groups a round begins.
        """
        self._parts, self._section, self._reward = parts, rollout, reward
        self._oversample = schedule.oversample

    async def _train_steps(self) -> str:
        self._parts.position.commit_stored(self._parts.store)
        return await super()._train_steps()

    async def _step(self, step: int) -> None:
        parts, bag, began = self._parts, MetricBag(), self._parts.clock.now()
        parts.stop.check()
        stored = stored_groups(parts.store, "train", step)
        if stored:
            await self._train(step, self._replay(stored), bag, stored=True)
        else:
            finished = await self._roll_out(step, bag)
            await self._train(step, [item.group for item in finished], bag, stored=False)
            parts.position.cursor.commit(item.claim.index for item in finished)
        await parts.weights.sync_after_step(bag)
        await self._end_step(step, bag, began=began, fresh=not stored)

    def _replay(self, stored: Sequence[TrajectoryGroup]) -> list[GroupHandle]:
        """Adopt what a killed process stored; its tasks were committed when this one began."""
        parts = self._parts
        parts.progress.phase("replay", sum(1 for group in stored for _ in group.rollouts()))
        return [parts.stages.rollouts.adopt(group) for group in stored]

    async def _train(
        self, step: int, groups: Sequence[GroupHandle], bag: MetricBag, *, stored: bool
    ) -> None:
        note_rollouts(bag, groups, n=self._section.n_samples_per_prompt)
        await self._parts.learner.train(step, groups, bag, stored=stored)

    async def _roll_out(self, step: int, bag: MetricBag) -> list[Finished]:
        """Roll out the groups of a round, and of further ones for those that the filter drops.

        The tasks of groups that were cancelled are deferred.
        """
        parts, reward, began = self._parts, self._reward, self._parts.clock.now()
        wanted = self._section.prompts_per_step
        finished: list[Finished] = []
        rounds, missing = 0, wanted
        while missing:
            finished += await self._round(missing, bag)
            missing = missing_groups(
                [item.group.report for item in finished], reward, wanted=wanted
            )
            if rounds == most_rounds(reward):
                break
            rounds += bool(missing)
        reports = [item.group.report for item in finished]
        parts.failures.trained(step, reports)
        note_rounds(bag, reward, rounds=rounds, missing=missing)
        seconds = parts.clock.now() - began
        bag.sum("timing_s/rollout", seconds)
        groups = [item.group for item in finished]
        note_speed(bag, groups, parts.stages, seconds=seconds)
        return finished

    async def _round(self, size: int, bag: MetricBag) -> list[Finished]:
        """Run a round to its first `size` groups; the tasks of the others are deferred."""
        parts, n = self._parts, self._section.n_samples_per_prompt
        cursor = parts.position.cursor
        plan = plan_round(
            size=size,
            oversample=self._oversample,
            deferred=cursor.gaps,
            left=cursor.left_in_epoch,
        )
        claims = [cursor.claim_new() if plan.new else cursor.claim() for _ in range(plan.groups)]
        parts.progress.phase("rollout", size * n)
        finished, surplus = await parts.stop.guard(
            run_first(
                self._run_group,
                claims,
                wanted=size,
                fills=self._fills,
                n=n,
                limit=parts.concurrency.limit,
            )
        )
        parts.pending.remove(item.group for item in surplus)
        note_aborted(
            bag,
            tokens=sum(item.group.report.spent_tokens for item in surplus),
            seconds=sum(item.group.report.spent_s for item in surplus),
        )
        done = {item.claim.index for item in finished}
        deferred = [claim for claim in claims if claim.index not in done]
        for claim in deferred:
            cursor.release(claim.index)
        bag.sum("rollout/put_off", len(deferred) * n)
        if self._reward.dynamic_filtering is not None:
            bag.sum("rollout/surplus_taken", max(0, len(finished) - size))
        return finished

    def _fills(self, group: GroupHandle) -> bool:
        """The group takes a place of the step: the filter keeps it."""
        return not is_filtered(group.report, self._reward)

    async def _run_group(self, claim: Claim) -> GroupHandle:
        group = await self._parts.rollouts.run_claim(claim)
        self._parts.pending.add(group)
        n = self._section.n_samples_per_prompt
        self._parts.progress.advance(n if self._fills(group) else 0, group.report.tokens)
        return group


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A group that ended in time."""

    claim: Claim
    """Claim of its task."""
    group: GroupHandle
    """Group of its rollouts."""


async def run_first(
    run_group: Callable[[Claim], Awaitable[GroupHandle]],
    claims: Sequence[Claim],
    *,
    wanted: int,
    n: int,
    limit: RolloutLimit,
    fills: Callable[[GroupHandle], bool] = lambda group: True,
) -> tuple[list[Finished], list[Finished]]:
    """Groups that end until `wanted` places are filled, in the order of the claims, and those that
    ended together with the last of them; the others are cancelled.

    Cancelled groups have cleaned up before this returns or raises.

    Args:
        run_group: makes one group; never raises for a failed rollout.
        claims: what to begin, in this order.
        wanted: places to fill; fewer are filled where too few groups do.
        n: rollouts of a group.
        limit: bounds the rollouts at once; at least one group always runs.
        fills: decides if a group that has ended takes a place. One that does not is still returned.
    """
    gate = GroupGate(limit, n)
    finished: list[Finished] = []
    surplus: list[Finished] = []
    left = wanted

    async def one(claim: Claim) -> None:
        nonlocal left
        async with gate.room():
            item = Finished(claim=claim, group=await run_group(claim))
        (finished if left else surplus).append(item)
        left -= bool(left) and fills(item.group)

    running = {asyncio.create_task(one(claim)) for claim in claims}
    done: set[asyncio.Task[None]] = set()
    try:
        while left and running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a worker never raises for a failed rollout: show what did
    finally:
        for task in running:
            task.cancel()
        # An outage of all engines ends several at once; the first says so for all.
        await asyncio.gather(*running, *done, return_exceptions=True)
    return sorted(finished, key=lambda item: item.claim.index), surplus
