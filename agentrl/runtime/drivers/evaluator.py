"""Evaluations of a run: every dataset with the weights of a step, each scored once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.config.schema import EvalSection
from agentrl.runtime.drivers.filters.pending_groups import PendingGroups
from agentrl.runtime.drivers.groups import eval_seeds
from agentrl.runtime.drivers.rollout_runner import RolloutRunner
from agentrl.runtime.health.failure_watch import FailureWatch
from agentrl.runtime.progress import Progress
from agentrl.runtime.scoring.score_book import ScoreBook
from agentrl.runtime.stages import GroupHandle, LearnStage
from agentrl.types import Task


class Evaluator:
    """Rolls the evaluation tasks out, stores them and scores them."""

    def __init__(
        self,
        section: EvalSection,
        *,
        seed: int,
        book: ScoreBook,
        rollouts: RolloutRunner,
        learner: LearnStage,
        watch: FailureWatch,
        pending: PendingGroups,
        progress: Progress,
    ) -> None:
        """Keep the parts that an evaluation needs.

        Args:
            section: rollouts per task and their temperature.
            seed: as `run.seed`; not changed by rollbacks.
            book: scores that are known already.
            rollouts: runs the tasks.
            learner: stores the groups.
            watch: ends a run in which nothing has ever worked.
            pending: account of training rollouts, which those of an evaluation must not enter.
            progress: notified of each score.
        """
        self._section, self._seed, self._book = section, seed, book
        self._rollouts, self._learner, self._watch = rollouts, learner, watch
        self._pending, self._progress = pending, progress

    async def evaluate(self, step: int, *, beside: bool = False) -> dict[str, float]:
        """Score every dataset with the weights that the engines have.

        Args:
            step: training steps done.
            beside: training goes on meanwhile, and is what the live view shows; what it has
                counted is added to its account before this is cancelled.

        Returns:
            Metrics of the scores that are not in the log yet.

        Raises:
            Interrupted: a signal.
            RunError: nothing has ever worked.
        """

        async def roll_out(name: str, tasks: Sequence[Task]) -> list[GroupHandle]:
            groups = await self._rollouts.collect(
                f"eval {name}",
                tasks,
                name=f"eval-{name}-{step}",
                n=self._section.n_samples,
                temperature=self._section.temperature,
                # The same draws before and after training sharpen the paired difference.
                seed=eval_seeds(self._seed, name),
                beside=beside,
            )
            self._watch.evaluated(step, [handle.report for handle in groups])
            await self._learner.keep(step, f"eval/{name}", groups)
            return groups

        self._pending.add_stage_counts()
        try:
            return await self._book.evaluate(step, roll_out, on_score=self._progress.evaluated)
        except BaseException as error:
            # Of one that fails beside training nothing is dropped: the stage has counted for that,
            # too. Who cancels it has added that before.
            if not beside or isinstance(error, asyncio.CancelledError):
                self._pending.discard_stage_counts()
            raise
