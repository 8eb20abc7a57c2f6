"""The synchronous driver with oversampling: the longest rollouts do not hold a step up.

    plan -> run groups -> the first B of them -> store, batch, train -> sync -> log -> save
     ^            |                                                               |
     |            +-- the others are cut and put off                              |
     +----------------------------------------------------------------------------+

A round begins more groups than it trains; as soon as B have ended the others are cancelled and put
off. Once B are put off, or the epoch has no B new tasks left, a round of their own finishes them
and cuts nobody. Strictly on-policy: every token of a step comes from the weights it trains. Every
task is trained once an epoch, and the last task of an epoch no later than in the step with the
first of the next. What was sampled of a group that is cut is thrown away.

With `reward.dynamic_filtering` a step takes further rounds for groups that teach nothing, up to
`reward.dynamic_filtering.rounds`.

Inside an epoch the order is no longer random: tasks that end soon come early and long ones late.

A signal wakes the rollouts, which are cancelled and clean up; an optimizer step and a checkpoint
always run to their end. Resume: as in `AsynchronousRun`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentrl.data.tasks.cursor import Claim
from agentrl.metrics import MetricBag
from agentrl.runtime.disk.stored_groups import stored_groups
from agentrl.runtime.drivers.driver import Driver
from agentrl.runtime.drivers.dynamic_filter import missing_groups, most_rounds, note_rounds
from agentrl.runtime.drivers.groups import note_cut, stable_seed
from agentrl.runtime.drivers.stream_order import commit_stored, group_name
from agentrl.runtime.stages import GroupHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round begins."""

    new: int
    """Tasks that were never begun; 0 for a round of what was put off, which is filled up."""
    groups: int
    """Groups that begin; those beyond B are cut."""


def plan_round(*, size: int, oversample: float, put_off: int, left: int) -> Round:
    """The next round.

    Args:
        size: B, groups that a step trains.
        oversample: groups begun per group trained.
        put_off: tasks that were cut.
        left: new tasks of this epoch.

    Example:
        >>> plan_round(size=4, oversample=1.5, put_off=3, left=20)
        Round(new=6, groups=6)
        >>> plan_round(size=4, oversample=1.5, put_off=5, left=14)
        Round(new=0, groups=4)
    """
    if put_off >= size or left < size:
        return Round(new=0, groups=size)
    new = min(math.ceil(oversample * size), left)
    return Round(new=new, groups=new)


class TailBatchingRun(Driver):
    """On-policy steps of the groups that end first, and rounds of their own for the others."""

    async def _train_to_end(self) -> str:
        commit_stored(self._parts, after=self._done)
        while (reason := self._reason_to_end()) is None:
            await self._step(self._done + 1)
        return reason

    async def _step(self, step: int) -> None:
        began = time.monotonic()
        bag = MetricBag()
        self._stop.check()
        stored = stored_groups(self._parts.store, "train", step)
        if stored:
            self._progress.phase("replay", sum(1 for group in stored for _ in group.rollouts()))
            groups = [self._stages.rollouts.adopt(group) for group in stored]
            await self._train(step, groups, bag, stored=True)
        else:
            finished = await self._roll_out(step, bag)
            await self._train(step, [item.group for item in finished], bag, stored=False)
            self._parts.cursor.commit(item.claim.index for item in finished)
        await self._sync_trained(bag)
        await self._finish_step(step, bag, began=began, fresh=not stored)

    async def _train(
        self, step: int, groups: Sequence[GroupHandle], bag: MetricBag, *, stored: bool
    ) -> None:
        self._count(groups, bag)
        await self._learn(step, groups, bag, stored=stored)

    async def _roll_out(self, step: int, bag: MetricBag) -> list[Finished]:
        """The groups of a round, and of further ones for those that the dynamic filter leaves out;
        the tasks of groups that were cut are put off."""
        began = time.monotonic()
        section, reward = self._config.rollout, self._config.reward
        finished: list[Finished] = []
        rounds, missing = 0, section.prompts_per_step
        while missing:
            finished += await self._round(missing, bag)
            missing = missing_groups(
                [item.group.report for item in finished], reward, wanted=section.prompts_per_step
            )
            if rounds == most_rounds(reward):
                break
            rounds += bool(missing)
        reports = [item.group.report for item in finished]
        self._watch.trained(step, reports)
        note_rounds(bag, reward, rounds=rounds, missing=missing)
        seconds = time.monotonic() - began
        bag.sum("timing_s/rollout", seconds)
        tokens = sum(report.tokens for report in reports)
        bag.mean("perf/tokens_per_second", tokens, count=seconds)
        return finished

    async def _round(self, size: int, bag: MetricBag) -> list[Finished]:
        """The first `size` groups of a round; the tasks of the others are put off."""
        cursor, n = self._parts.cursor, self._config.rollout.n_samples_per_prompt
        plan = plan_round(
            size=size,
            oversample=self._config.schedule.oversample,
            put_off=cursor.gaps,
            left=cursor.left_in_epoch,
        )
        claims = [cursor.claim_new() if plan.new else cursor.claim() for _ in range(plan.groups)]
        self._progress.phase("rollout", size * n)
        finished, surplus = await self._stop.guard(
            run_first(self._run_group, claims, wanted=size, at_once=self._parts.in_flight // n)
        )
        self._unsettled.settle(item.group for item in surplus)
        note_cut(
            bag,
            tokens=sum(item.group.report.spent_tokens for item in surplus),
            seconds=sum(item.group.report.spent_s for item in surplus),
        )
        done = {item.claim.index for item in finished}
        put_off = [claim for claim in claims if claim.index not in done]
        for claim in put_off:
            cursor.release(claim.index)
        bag.sum("rollout/put_off", len(put_off) * n)
        return finished

    async def _run_group(self, claim: Claim) -> GroupHandle:
        section = self._config.rollout
        group = await self._stages.rollouts.run_group(
            claim.task,
            group_id=group_name(claim),
            n=section.n_samples_per_prompt,
            sampling=self._sampling(section.temperature),
            seed=stable_seed(self._seed, "train", claim.index, claim.task.id),
        )
        self._unsettled.ended(group)
        self._progress.advance(section.n_samples_per_prompt, group.report.tokens)
        return group


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A group that ended in time."""

    claim: Claim
    """Its task."""
    group: GroupHandle
    """What was made of it."""


async def run_first(
    run_group: Callable[[Claim], Awaitable[GroupHandle]],
    claims: Sequence[Claim],
    *,
    wanted: int,
    at_once: int,
) -> tuple[list[Finished], list[Finished]]:
    """The first `wanted` groups to end, in the order of the claims, and those that ended together
    with the last of them; the others are cancelled.

    Cancelled groups have cleaned up before this returns or raises.

    Args:
        run_group: makes one group; never raises for a failed rollout.
        claims: what to begin, in this order.
        wanted: groups to wait for.
        at_once: most groups at once; at least one always runs.
    """
    gate = asyncio.Semaphore(max(1, at_once))
    finished: list[Finished] = []

    async def one(claim: Claim) -> None:
        async with gate:
            finished.append(Finished(claim=claim, group=await run_group(claim)))

    running = {asyncio.create_task(one(claim)) for claim in claims}
    try:
        while len(finished) < wanted:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a worker never raises for a failed rollout: show what did
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return sorted(finished[:wanted], key=lambda item: item.claim.index), finished[wanted:]
