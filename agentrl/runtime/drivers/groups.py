"""Many groups at once: tasks in, groups out, in the order of the tasks."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from agentrl.config.schema import RolloutSection
from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.concurrency import GroupGate, RolloutLimit
from agentrl.runtime.stages import GroupHandle, Stages
from agentrl.types import SamplingParams, Task, Trajectory, TrajectoryGroup

G = TypeVar("G", covariant=True)


class GroupRunner(Protocol[G]):
    """Makes one group: a rollout worker, or the stage in front of many."""

    def run_group(
        self, task: Task, *, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> Awaitable[G]:
        """Roll one task out `n` times."""
        ...


def eval_seeds(seed: int, name: str) -> Callable[[Task], int]:
    """Seed of each task of an evaluation: the same in a run, after it, and in `agentrl eval`.

    Args:
        seed: `run.seed`.
        name: of the dataset.
    """
    return lambda task: stable_seed(seed, "eval", name, task.id)


def stable_seed(*parts: object) -> int:
    """A 63-bit seed that is the same in every process for the same parts.

    Example:
        >>> stable_seed(0, "train", 1, "task-7") == stable_seed(0, "train", 1, "task-7")
        True
    """
    text = "\x1f".join(map(str, parts))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def batch_seed(seed: int, step: int) -> int:
    """Seed of the order in which the groups of a step fall into minibatches, from `run.seed`."""
    return stable_seed(seed, "batch", step)


async def run_groups(
    runner: GroupRunner[G],
    tasks: Sequence[Task],
    *,
    name: str,
    n: int,
    sampling: SamplingParams,
    seed: Callable[[Task], int],
    limit: RolloutLimit,
    on_group: Callable[[G], None] = lambda group: None,
    on_position: Callable[[int, G], None] = lambda position, group: None,
    order: Sequence[int] | None = None,
) -> list[G]:
    """Run every task `n` times, as many rollouts at once as the limit allows.

    The bound keeps the limit of a turn about decoding: beyond what a server decodes at once, a
    turn would spend its time in a queue. On cancellation every group is
    cancelled and has cleaned up before this returns.

    Args:
        runner: makes one group.
        tasks: one group each, also where a task occurs twice.
        name: prefix of the group ids, unique in the run.
        n: rollouts per task.
        sampling: how turns are sampled.
        seed: seed of a task's group.
        limit: bounds the rollouts at once; at least one group always runs.
        on_group: called as each group finishes.
        on_position: likewise, with the position of its task.
        order: positions of the tasks in the order in which they begin; None for theirs.
    """
    gate = GroupGate(limit, n)
    # A task that comes twice has two seeds, which must not depend on the order of the beginnings.
    seeds = [seed(task) for task in tasks]

    async def one(index: int, task: Task) -> G:
        async with gate.room():
            group = await runner.run_group(
                task,
                group_id=f"{name}/{index:04d}-{task.id}",
                n=n,
                sampling=sampling,
                seed=seeds[index],
            )
        on_group(group)
        on_position(index, group)
        return group

    try:
        async with asyncio.TaskGroup() as tasks_of_groups:
            running = {
                index: tasks_of_groups.create_task(one(index, tasks[index]))
                for index in order or range(len(tasks))
            }
    except BaseExceptionGroup as group:
        # A worker never raises for a failed rollout, so this is a broken invariant: show it bare.
        raise group.exceptions[0] from group
    return [running[index].result() for index in range(len(tasks))]


def sampling_of(
    section: RolloutSection, temperature: float, stop_token_ids: tuple[int, ...]
) -> SamplingParams:
    """Sampling parameters of the turns of a run at a temperature."""
    return SamplingParams(
        temperature=temperature,
        top_p=section.top_p,
        max_tokens=section.max_turn_tokens,
        stop_token_ids=stop_token_ids,
    )


def note_rollouts(bag: MetricBag, groups: Sequence[GroupHandle], *, n: int) -> None:
    """Count the rollouts of a step; every one that was started has come back as something.

    Args:
        bag: of the step.
        groups: all of the step.
        n: rollouts that each was started with.
    """
    rollouts = [rollout for handle in groups for rollout in handle.report.rollouts]
    started = len(groups) * n
    assert len(rollouts) == started, f"{started} rollouts started, {len(rollouts)} came"
    bag.sum("rollout/started", started)
    bag.sum("rollout/dropped", sum(not rollout.rule.in_loss for rollout in rollouts))


def note_speed(
    bag: MetricBag, groups: Sequence[GroupHandle], stages: Stages, *, seconds: float
) -> None:
    """Note the tokens sampled in a second of rollouts, by all engines and on each device of theirs.

    Args:
        bag: of the step.
        groups: that ended in this time.
        stages: their engines sampled them.
        seconds: that their rollouts took; with rollouts beside training, the whole step.
    """
    devices = len(stages.engines.stats()) * stages.engine_devices
    tokens = sum(handle.report.tokens for handle in groups)
    bag.mean("perf/tokens_per_second", tokens, count=seconds)
    bag.mean("perf/tokens_per_second_per_device", tokens, count=seconds * devices)


def rollouts_of(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """The last row of every rollout; it carries the termination."""
    return [rows[-1] for group in groups for rows in group.rollouts()]
