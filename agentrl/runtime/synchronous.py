"""The synchronous driver: one step after the other, strictly on-policy.

    take tasks -> run groups -> store, batch, train -> sync -> evaluate -> log -> save
        ^                                                                        |
        +------------------------------------------------------------------------+

A signal wakes the rollouts, which are cancelled and clean up; an optimizer step and a checkpoint
always run to their end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.collect import stable_seed
from agentrl.runtime.driver import Driver
from agentrl.runtime.stages import GroupHandle
from agentrl.runtime.stored import stored_groups
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
        tasks = self._parts.cursor.take(self._config.rollout.prompts_per_step)
        groups, fresh = await self._rollouts(step, tasks, bag)
        await self._learn(step, groups, bag, stored=not fresh)
        await self._sync_trained(bag)
        await self._finish_step(step, bag, began=began, fresh=fresh)

    async def _rollouts(
        self, step: int, tasks: Sequence[Task], bag: MetricBag
    ) -> tuple[list[GroupHandle], bool]:
        """The groups of a step: from the store if a killed process left them there, else new."""
        self._stop.check()
        section = self._config.rollout
        stored = stored_groups(self._parts.store, "train", step)
        if stored:
            self._progress.phase("replay", len(tasks) * section.n_samples_per_prompt)
            _check_replay(step, tasks, stored)
            groups = [self._stages.rollouts.adopt(group) for group in stored]
        else:
            began = time.monotonic()
            groups = await self._collect(
                "rollout",
                tasks,
                name=f"step-{step}",
                n=section.n_samples_per_prompt,
                temperature=section.temperature,
                seed=step_seeds(self._config.run.seed, step),
            )
            seconds = time.monotonic() - began
            reports = [handle.report for handle in groups]
            self._watch.trained(step, reports)
            bag.sum("timing_s/rollout", seconds)
            tokens = sum(report.tokens for report in reports)
            bag.mean("perf/tokens_per_second", tokens, count=seconds)
        self._count(groups, bag, started=len(tasks) * section.n_samples_per_prompt)
        return groups, not stored


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
