"""Pairs of the newest rollouts that a labeller can be asked about.

Both rollouts of a pair had the same task and the same prompt; newest steps come first, and of one
step the first pair of every group comes before the second one of any.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import TYPE_CHECKING

from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import DataError
from agentrl.types import Completion, PreferencePair, Task, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore

PER_GROUP = 8
"""Most pairs of a group: they share rollouts and teach little more than fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePair:
    """Two rollouts of one task, in a drawn order."""

    step: int
    """Step that they were rolled out in."""
    task: Task
    """Task of both."""
    a: Trajectory
    """The one shown first."""
    b: Trajectory
    """The other."""

    @property
    def key(self) -> str:
        """Name that follows from the tokens of both."""
        digest = hashlib.blake2b(digest_size=8)
        for ids in (self.a.prompt_ids, self.a.response_ids, self.b.response_ids):
            digest.update(repr(ids).encode())
        return f"{self.step:06d}-{digest.hexdigest()}"


class NewestPairs:
    """Gives pairs, the newest first, and reads a step only when it is come to."""

    def __init__(
        self,
        store: TrajectoryStore,
        steps: Sequence[int],
        tasks: Mapping[str, Task],
        *,
        seed: int,
    ) -> None:
        """Read nothing yet.

        Args:
            store: of the run.
            steps: steps to take rollouts from, the newest first.
            tasks: by id.
            seed: of the choice among the pairs of a group, and of their order.
        """
        self._store, self._steps, self._tasks, self._seed = store, list(steps), tasks, seed
        self._ready: list[CandidatePair] = []

    async def take(self, count: int) -> list[CandidatePair]:
        """The next pairs, at most `count`; none once all are given.

        Raises:
            DataError: the dataset has no such task any more.
        """
        while self._steps and len(self._ready) < count:
            step = self._steps.pop(0)
            groups = await asyncio.to_thread(stored_groups, self._store, "train", step)
            self._ready += pairs_of_step(step, groups, self._tasks, seed=self._seed)
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken


def pairs_of_step(
    step: int, groups: Sequence[TrajectoryGroup], tasks: Mapping[str, Task], *, seed: int
) -> list[CandidatePair]:
    """The pairs of one step, one of every group after the other.

    Raises:
        DataError: a task is not known.
    """
    by_group: list[list[CandidatePair]] = []
    for group in groups:
        draw = random.Random(f"{seed}/{step}/{group.group_id}")
        pairs = [
            (a, b)
            for a, b in combinations(_comparable(group), 2)
            if a.prompt_ids == b.prompt_ids and a.response_ids != b.response_ids
        ]
        if not pairs:
            continue
        if group.task_id not in tasks:
            raise DataError(
                f"the rollouts of step {step} had a task {group.task_id!r}, which the dataset does "
                "not hold any more; put it back"
            )
        task = tasks[group.task_id]
        drawn = draw.sample(pairs, min(PER_GROUP, len(pairs)))
        ordered = [draw.sample(pair, 2) for pair in drawn]
        by_group.append([CandidatePair(step=step, task=task, a=a, b=b) for a, b in ordered])
    return [pair for row in zip_longest(*by_group) for pair in row if pair is not None]


def _comparable(group: TrajectoryGroup) -> list[Trajectory]:
    """Rollouts of one row (after a break the second has another prompt) that came to their end."""
    rows = Counter(row.rollout_id for row in group.trajectories)
    return [
        row
        for row in group.trajectories
        if rows[row.rollout_id] == 1 and row.rule.reward_trusted and row.num_action_tokens
    ]


def preference(pair: CandidatePair, probability: float) -> PreferencePair:
    """The pair as one that a reward model learns from.

    Args:
        pair: that was asked about.
        probability: in [0, 1], other than 0.5, that `a` is the better one.
    """
    better, worse = (pair.a, pair.b) if probability > 0.5 else (pair.b, pair.a)
    return PreferencePair(
        id=f"{pair.key}/{better.rollout_id} > {worse.rollout_id}",
        prompt_ids=better.prompt_ids,
        prompt_text=better.prompt_text,
        chosen=completion_of(better),
        rejected=completion_of(worse),
        label_probability=max(probability, 1 - probability),
        task_id=pair.task.id,
        source=f"step {pair.step}, group {better.group_id}",
    )


def completion_of(row: Trajectory) -> Completion:
    """The response up to its last sampled token, which is where it is scored."""
    end = max(index for index, sampled in enumerate(row.response_mask) if sampled) + 1
    return Completion(ids=row.response_ids[:end], mask=row.response_mask[:end])
