"""The synchronous driver: one step after the other, strictly on-policy.

    take tasks -> run groups -> store, batch, train -> sync -> evaluate -> log -> save
     ^  ^            |                                                           |
     |  +- filtered -+                                                           |
     +---------------------------------------------------------------------------+

A step of several minibatches begins to train while its last groups are rolled out, where that gives
the same numbers (`mini_batches`).

With `reward.dynamic_filtering` a step asks for more tasks instead of groups that teach nothing, up
to `reward.dynamic_filtering.rounds` times. All its groups are stored as one step and in the order
in which their tasks were taken, so a resume knows from the store how far the tasks are used up.

With `reward.refresh` a reward model is brought up to date before a step, when nothing is under way.

A signal wakes the rollouts, which are cancelled and clean up; an optimizer step and a checkpoint
always run to their end. A step of which some minibatches are trained then is begun again from the
last checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agentrl.config.reward import RewardSection
from agentrl.config.schema import RolloutSection
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import RunError
from agentrl.metrics import MetricBag
from agentrl.runtime.drivers.driver import DriverParts, StepLoop
from agentrl.runtime.drivers.filters.dynamic_filter import missing_groups, most_rounds, note_rounds
from agentrl.runtime.drivers.groups import note_rollouts, note_speed, stable_seed
from agentrl.runtime.drivers.mini_batches import EarlyTraining, MiniBatchPlan
from agentrl.runtime.stages import GroupHandle
from agentrl.types import Task, TrajectoryGroup


class SynchronousRun(StepLoop):
    """Rolls out a step, trains it, moves the weights, and only then rolls out the next."""

    def __init__(
        self,
        parts: DriverParts,
        *,
        rollout: RolloutSection,
        reward: RewardSection,
        plan: MiniBatchPlan | None = None,
    ) -> None:
        """Begin nothing yet.

        Args:
            parts: standing where earlier processes of the run have stopped.
            rollout: groups of a step and rollouts of a group.
            reward: which groups are replaced, and how often.
            plan: minibatches that are trained as soon as they are complete; None waits for all.
        """
        self._parts, self._rollout, self._reward, self._plan = parts, rollout, reward, plan

    async def _step(self, step: int) -> None:
        parts, bag = self._parts, MetricBag()
        parts.stop.check()
        began = parts.clock.now()
        if parts.refresh is not None:
            await parts.refresh.before_step(step, bag)
        stored = stored_groups(parts.store, "train", step)
        groups = self._replay(step, stored) if stored else await self._roll_out(step, bag)
        note_rollouts(bag, groups, n=self._rollout.n_samples_per_prompt)
        await parts.learner.train(step, groups, bag, stored=bool(stored))
        await parts.weights.sync_after_step(bag)
        await self._end_step(step, bag, began=began, fresh=not stored)

    def _replay(self, step: int, stored: Sequence[TrajectoryGroup]) -> list[GroupHandle]:
        """Adopt the groups that a killed process stored, and take their tasks.

        However many rounds they took, as many tasks are done.
        """
        parts = self._parts
        parts.progress.phase("replay", sum(1 for group in stored for _ in group.rollouts()))
        _check_replay(step, parts.position.cursor.take(len(stored)), stored)
        return [parts.stages.rollouts.adopt(group) for group in stored]

    async def _roll_out(self, step: int, bag: MetricBag) -> list[GroupHandle]:
        """Roll out the groups of a step, and others for those that the dynamic filter drops."""
        parts, section, began = self._parts, self._rollout, self._parts.clock.now()
        seed = step_seeds(parts.seed, step)
        needed = [] if self._plan is None else self._plan.needed(step)
        early = EarlyTraining(parts.stages.learner, needed, step=step, clock=parts.clock)
        groups: list[GroupHandle] = []
        rounds, missing = 0, section.prompts_per_step
        while missing:
            groups += await early.beside(
                parts.rollouts.collect(
                    "rollout",
                    parts.position.cursor.take(missing),
                    name=f"step-{step}" if rounds == 0 else f"step-{step}/round-{rounds}",
                    n=section.n_samples_per_prompt,
                    temperature=section.temperature,
                    seed=seed,
                    on_group=parts.pending.add,
                    on_position=early.add,
                    order=early.order,
                )
            )
            missing = missing_groups(
                [handle.report for handle in groups], self._reward, wanted=section.prompts_per_step
            )
            if rounds == most_rounds(self._reward):
                break
            rounds += bool(missing)
        early.note(bag)
        seconds = parts.clock.now() - began - early.tail_s
        reports = [handle.report for handle in groups]
        parts.failures.trained(step, reports)
        note_rounds(bag, self._reward, rounds=rounds, missing=missing)
        bag.sum("timing_s/rollout", seconds)
        note_speed(bag, groups, parts.stages, seconds=seconds)
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
