"""An evaluation that runs while the trainer trains on: only the next weight sync waits for it.

    train 4 | sync | train 5 | train 6 |  (waits)  | sync | train 7
                   | ---- evaluate 4 ------------> |

The engines hold the weights of the step from the sync before the evaluation to the one after it, so
every token of a score comes from exactly one version. The back-pressure bounds how far training may
go meanwhile, as it bounds it between any two syncs; then the trainer waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from agentrl.config.schema import CheckpointSection
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.progress import Progress

Evaluate = Callable[[int], Coroutine[Any, Any, dict[str, float]]]
"""Scores a step with the weights that the engines have; returns the metrics to log."""


class EvaluationBeside:
    """At most one evaluation in flight; must be closed by its maker."""

    def __init__(
        self,
        evaluate: Evaluate,
        *,
        scored: Callable[[int, dict[str, float]], Awaitable[None]],
        stop: StopSwitch,
        progress: Progress,
    ) -> None:
        """Begin nothing yet.

        Args:
            evaluate: rolls out and scores.
            scored: called with a step and the metrics of its scores.
            stop: ends the wait for an evaluation.
            progress: notified of an evaluation that is not finished.
        """
        self._evaluate, self._scored = evaluate, scored
        self._stop, self._progress = stop, progress
        self._step = 0
        self._task: asyncio.Task[dict[str, float]] | None = None

    @property
    def in_flight(self) -> bool:
        """An evaluation has begun and is not finished."""
        return self._task is not None and not self._task.done()

    def start(self, step: int) -> None:
        """Evaluate `step`, whose weights the engines have; none may be in flight."""
        assert self._task is None, "an evaluation is in flight already"
        self._step = step
        self._task = asyncio.create_task(self._evaluate(step), name=f"evaluation of step {step}")

    async def finish(self) -> None:
        """Wait for the evaluation in flight and log its scores; returns at once without one.

        Raises:
            Interrupted: a signal.
            RunError: as `Evaluator.evaluate`.
        """
        if (task := self._task) is None:
            return
        await self._stop.guard(_ended(task))
        self._task = None
        await self._scored(self._step, task.result())

    async def close(self, *, again_after: int | None = None) -> None:
        """Cancel the evaluation in flight and wait until it has cleaned up.

        Args:
            again_after: step that the run goes on from, since it lost a rank: later ones are
                trained and scored again. None where it ends.
        """
        task, self._task = self._task, None
        if task is None:
            return
        if task.done() and not task.cancelled() and task.exception() is None:
            await self._scored(self._step, task.result())
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the run ends for a reason of its own
        if again_after is None or self._step <= again_after:
            self._progress.note(
                f"the evaluation of step {self._step} is not finished, and its score is missing"
            )


async def _ended(task: asyncio.Task[dict[str, float]]) -> None:
    """Wait for a task, which goes on where this wait is cancelled."""
    await asyncio.wait([task])


def why_training_stops(
    checkpoint: CheckpointSection, *, shares_weights: bool, rules_of_scores: bool
) -> str:
    """Why training stands still for an evaluation; empty if it need not.

    Args:
        checkpoint: of the run.
        shares_weights: engines sample from the learner's own tensors.
        rules_of_scores: a health rule names a score.
    """
    if shares_weights:
        return "the engines sample from the tensors that training changes"
    if checkpoint.best_count:
        return "checkpoint.keep_best saves a step by its score, while its weights are there"
    if rules_of_scores:
        return "a rule of health.rules decides by a score before the next step"
    return ""
