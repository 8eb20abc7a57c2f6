"""Decides after each step whether the run ends, evaluates or saves; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.metrics.run_clock import RunClock
from agentrl.runtime.drivers.checkpoint_keeper import CheckpointKeeper
from agentrl.runtime.drivers.position import RunPosition
from agentrl.runtime.health.run_health import RunHealth
from agentrl.runtime.scoring.score_book import ScoreBook

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore


class StepDecisions:
    """Answers from the rules, the store, the clock and the intervals of the config."""

    def __init__(
        self,
        *,
        position: RunPosition,
        health: RunHealth,
        store: TrajectoryStore,
        clock: RunClock,
        book: ScoreBook,
        checkpoints: CheckpointKeeper,
        steps: int,
        evaluate_every: int,
    ) -> None:
        """Read these parts whenever a decision is asked for.

        Args:
            position: steps done.
            health: rules that end the run or roll it back.
            store: steps that are stored and not yet trained.
            clock: time that is left.
            book: time of an evaluation.
            checkpoints: the checkpoints that would be kept.
            steps: as `train.steps`.
            evaluate_every: as `eval.every_steps`.
        """
        self._position, self._health, self._store = position, health, store
        self._clock, self._book, self._checkpoints = clock, book, checkpoints
        self._steps, self._evaluate_every = steps, evaluate_every

    def reason_to_end(self) -> str | None:
        """Why no further step follows; None while the run goes on."""
        done = self._position.done
        ruling = self._health.ruling(done)
        if ruling is not None:
            return ruling.text
        if done >= self._steps:
            return "all steps done"
        if done + 1 in self._store.steps("train"):
            return None  # stored, so it was begun: its training is owed whatever the clock says
        if not self._clock.is_up(evaluation_s=self._book.owed_s):
            return None
        return "time is up" if done else "train.max_minutes leaves no time to train"

    def evaluation_due(self, step: int) -> bool:
        """Evaluate after this step: before training, at its end, and in intervals."""
        if self._health.rolls_back(self._position.done):
            return False
        every = self._evaluate_every
        return step == 0 or self.reason_to_end() is not None or bool(every and step % every == 0)

    async def checkpoint_due(self, step: int) -> bool:
        """Save this step: in intervals, and where its scores are among the best."""
        if self._health.rolls_back(self._position.done):
            return False  # it would be moved aside at once
        return await self._checkpoints.wanted(step)
