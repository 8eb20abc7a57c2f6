"""Trains the minibatches of a synchronous step while its other groups are rolled out.

    roll out   g2 g0 | g3 g1 | g5 g4 |
    train            | m0    | m1    | m2 -> sync

The engines keep the weights of the step's beginning until all of its updates are made, so every
token is sampled by one version. Invariants: minibatches are trained in their order, each whole; the
last one waits for all groups, so that the step is on the disk before it is complete; nothing is
saved or synced in between. A process that ends there goes on from its last checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from agentrl.batch.minibatches import minibatch_places, why_not_early
from agentrl.config.algorithm import AlgorithmSection
from agentrl.config.reward import RewardSection
from agentrl.config.schema import RolloutSection, TrainSection
from agentrl.metrics import MetricBag
from agentrl.metrics.run_clock import RunClock
from agentrl.runtime.drivers.groups import batch_seed
from agentrl.runtime.stages import GroupHandle, LearnStage

T = TypeVar("T")


class MiniBatchPlan:
    """The groups that each minibatch of a step needs, before any of them has begun."""

    def __init__(self, rollout: RolloutSection, *, minibatches: int, seed: int) -> None:
        """Plan the steps of a run.

        Args:
            rollout: groups of a step and rollouts of a group.
            minibatches: updates of a pass; 1 trains nothing early.
            seed: as `run.seed`, from which `StepMaker` draws the same minibatches.
        """
        self._sizes = [rollout.n_samples_per_prompt] * rollout.prompts_per_step
        self._minibatches, self._seed = minibatches, seed

    def needed(self, step: int) -> list[list[int]]:
        """Positions of the groups of each minibatch."""
        parts = minibatch_places(
            self._sizes,
            minibatches=self._minibatches,
            seed=batch_seed(self._seed, step),
            epoch=0,
        )
        return [list(dict.fromkeys(place.group for place in part)) for part in parts]


class EarlyTraining:
    """The minibatches of one step that are trained before its last group has ended."""

    def __init__(
        self, learner: LearnStage, needed: Sequence[Sequence[int]], *, step: int, clock: RunClock
    ) -> None:
        """Train nothing yet.

        Args:
            learner: makes the updates.
            needed: see `MiniBatchPlan.needed`; empty trains nothing early.
            step: from 1.
            clock: measures what is trained beside the rollouts.
        """
        self._learner, self._needed, self._step, self._clock = learner, needed, step, clock
        self._ended: dict[int, GroupHandle] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self._updates = 0
        self._seconds = 0.0
        self.tail_s = 0.0
        """Seconds from the end of the last rollout to that of the update at hand."""

    @property
    def order(self) -> list[int]:
        """Positions of the groups in the order in which they are needed."""
        return list(dict.fromkeys(position for part in self._needed for position in part))

    def add(self, position: int, group: GroupHandle) -> None:
        """Take a group that has ended."""
        self._ended[position] = group
        self._changed.set()

    async def beside(self, rollouts: Coroutine[Any, Any, T]) -> T:
        """Train while `rollouts` runs; an update that has begun runs to its end.

        Raises:
            AgentrlError: what an update raised; the rollouts are cancelled.
            Exception: what the rollouts raised.
        """
        if not self._needed:
            return await rollouts
        rolling = asyncio.ensure_future(rollouts)
        training = asyncio.create_task(self._train())
        training.add_done_callback(lambda task: _failed(task) and rolling.cancel())
        try:
            return await rolling
        finally:
            ended, waits = self._clock.now(), not training.done()
            self._closed = True
            self._changed.set()
            await training
            self.tail_s = self._clock.now() - ended if waits else 0.0

    def note(self, bag: MetricBag) -> None:
        """Count the updates that began beside the rollouts, and the seconds that both took."""
        if not self._needed:
            return
        bag.sum("train/updates_early", self._updates)
        bag.sum("timing_s/train_early", self._seconds - self.tail_s)
        bag.sum("timing_s/train", self.tail_s)

    async def _train(self) -> None:
        for index, needed in enumerate(self._needed[:-1]):
            while not self._closed and not self._ended.keys() >= set(needed):
                self._changed.clear()
                await self._changed.wait()
            if self._closed:
                return
            began = self._clock.now()
            groups = {position: self._ended[position] for position in sorted(needed)}
            await self._learner.learn_early(self._step, index, groups)
            self._updates += 1
            self._seconds += self._clock.now() - began


def _failed(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is not None


def why_whole_steps(
    train: TrainSection,
    algorithm: AlgorithmSection,
    reward: RewardSection,
    *,
    synchronous: bool,
    shares_weights: bool,
) -> str:
    """Why a step begins to train only when all of its groups have ended; empty if it need not.

    Args:
        train: updates of a step.
        algorithm: resolved.
        reward: shaping and filter.
        synchronous: rollouts of a step neither run ahead nor are put off.
        shares_weights: engines sample from the learner's own tensors.
    """
    if train.minibatches == 1:
        return "train.minibatches is 1: the one update of a step needs all of its groups"
    if not synchronous:
        return "it is for synchronous runs, and this schedule runs ahead or puts rollouts off"
    if shares_weights:
        return (
            "the embedded engine samples from the trainer's own weights, which an update would "
            "change under the rollouts of the same step; use serving.engine: vllm"
        )
    if reward.dynamic_filtering is not None:
        return "reward.dynamic_filtering decides which groups a step has when all have ended"
    if reward.normalize:
        return "reward.normalize takes the mean and deviation of all rewards of the step"
    return why_not_early(algorithm)
