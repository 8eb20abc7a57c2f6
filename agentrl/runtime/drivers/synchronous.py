"""The synchronous driver: one step after the other, strictly on-policy.

    take tasks -> run groups -> store, batch, train -> sync -> evaluate -> log -> save
     ^  ^            |                                                           |
     |  +- filtered -+                                                           |
     +---------------------------------------------------------------------------+

With `reward.dynamic_filtering` a step asks for more tasks in place of groups that teach nothing, up
to `rounds` times. All its groups are stored as one step and in the order in which their tasks were
taken, so a resume knows from the store how far the tasks are used up.

A signal wakes the rollouts, which are cancelled and clean up; an optimizer step and a checkpoint
always run to their end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.disk.stored_groups import stored_groups
from agentrl.runtime.drivers.driver import Driver
from agentrl.runtime.drivers.dynamic_filter import missing_groups, most_rounds, note_rounds
from agentrl.runtime.drivers.groups import stable_seed
from agentrl.runtime.stages import GroupHandle
from agentrl.types import Task, TrajectoryGroup


class SynchronousRun(Driver):
    """Rolls out a step, trains it, moves the weights, and only then rolls out the next."""

    async def _train_to_end(self) -> str:
        while (reason := self._reason_to_end()) is None:
            await self._step(self._done + 1)
        return reason

    async def _step(self, step: int) -> None:
        began = time.monotonic()
        bag = MetricBag()
        self._stop.check()
        stored = stored_groups(self._parts.store, "train", step)
        groups = self._replay(step, stored) if stored else await self._roll_out(step, bag)
        self._count(groups, bag)
        await self._learn(step, groups, bag, stored=bool(stored))
        await self._sync_trained(bag)
        await self._finish_step(step, bag, began=began, fresh=not stored)

    def _replay(self, step: int, stored: Sequence[TrajectoryGroup]) -> list[GroupHandle]:
        """What a killed process stored, however many rounds it took: as many tasks are done."""
        self._progress.phase("replay", sum(1 for group in stored for _ in group.rollouts()))
        _check_replay(step, self._parts.cursor.take(len(stored)), stored)
        return [self._stages.rollouts.adopt(group) for group in stored]

    async def _roll_out(self, step: int, bag: MetricBag) -> list[GroupHandle]:
        """The groups of a step, and more of them for those that the dynamic filter leaves out."""
        began = time.monotonic()
        rollout, reward = self._config.rollout, self._config.reward
        seed = step_seeds(self._seed, step)
        groups: list[GroupHandle] = []
        rounds, missing = 0, rollout.prompts_per_step
        while missing:
            groups += await self._collect(
                "rollout",
                self._parts.cursor.take(missing),
                name=f"step-{step}" if rounds == 0 else f"step-{step}/round-{rounds}",
                n=rollout.n_samples_per_prompt,
                temperature=rollout.temperature,
                seed=seed,
                on_group=self._unsettled.ended,
            )
            missing = missing_groups(
                [handle.report for handle in groups], reward, wanted=rollout.prompts_per_step
            )
            if rounds == most_rounds(reward):
                break
            rounds += bool(missing)
        seconds = time.monotonic() - began
        reports = [handle.report for handle in groups]
        self._watch.trained(step, reports)
        note_rounds(bag, reward, rounds=rounds, missing=missing)
        bag.sum("timing_s/rollout", seconds)
        tokens = sum(report.tokens for report in reports)
        bag.mean("perf/tokens_per_second", tokens, count=seconds)
        return groups


def step_seeds(seed: int, step: int) -> Callable[[Task], int]:
    """Seeds of the groups of a step, to be asked for once a group.

    A step larger than what is left of an epoch may hold a task twice. Its second group has a seed
    of its own: the same rollouts twice would count double and teach nothing new.
    """
    seen: Counter[str] = Counter()

    def of(task: Task) -> int:
        again = seen[task.id]
        seen[task.id] += 1
        return stable_seed(seed, "train", step, task.id, *([again] if again else []))

    return of


def _check_replay(step: int, tasks: Sequence[Task], groups: Sequence[TrajectoryGroup]) -> None:
    """Stored groups must be those of the tasks the cursor yields; else the data set changed."""
    expected, got = [task.id for task in tasks], [group.task_id for group in groups]
    if expected != got:
        raise RunError(
            f"--resume: step {step} was rolled out on tasks {got[:4]}..., but the dataset now "
            f"yields {expected[:4]}...; the dataset has changed since the run began"
        )
