"""The scores of a run: made once, stored as trajectories, read back after a resume."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentrl.disk.stored_groups import stored_groups
from agentrl.metrics.run_clock import expected_s
from agentrl.runtime.scores import Comparison, EvalSummary
from agentrl.runtime.scoring.evaluate import summarise
from agentrl.runtime.stages import GroupHandle, GroupReport, report_of
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.data import TrajectoryStore

logger = logging.getLogger(__name__)

RollOut = Callable[[str, Sequence[Task]], Awaitable[Sequence[GroupHandle]]]


class ScoreBook:
    """Every evaluation of a run. The stored trajectories decide what has been done already."""

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        store: TrajectoryStore,
        *,
        n_samples: int,
        logged: Mapping[int, Mapping[str, float]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with what an earlier process logged.

        Args:
            tasks: of each dataset.
            store: where evaluations are kept.
            n_samples: rollouts per task.
            logged: step to its values in the metrics file.
            now: a clock that never goes back, in seconds.
        """
        self._tasks = tasks
        self._store = store
        self._n_samples = n_samples
        self._now = now
        self._scores: dict[tuple[str, int], EvalSummary] = {}
        self._logged = {
            (name, step)
            for step, values in logged.items()
            for name in tasks
            if f"eval/{name}/untrusted" in values
        }
        took = (logged[step].get("timing_s/eval") for step in sorted(logged))
        self._took = [seconds for seconds in took if seconds is not None]
        self._began: float | None = None  # of the evaluation in flight

    @property
    def owed_s(self) -> float:
        """Seconds until one more evaluation of all datasets would have ended, after one in flight;
        0 before the first."""
        expected = expected_s(self._took)
        if self._began is None:
            return expected
        return expected + max(0.0, expected - (self._now() - self._began))

    async def evaluate(
        self, step: int, roll_out: RollOut, *, on_score: Callable[[EvalSummary], None]
    ) -> dict[str, float]:
        """Score every dataset at `step`; what is stored is read, not run again.

        Args:
            step: training steps done.
            roll_out: makes and stores the groups of a dataset.
            on_score: called once with each score of this step.

        Returns:
            Metrics of the scores that are not in the metrics file yet.
        """
        self._began = self._now()
        try:
            return await self._evaluate(step, roll_out, on_score, began=self._began)
        finally:
            self._began = None

    async def _evaluate(
        self, step: int, roll_out: RollOut, on_score: Callable[[EvalSummary], None], *, began: float
    ) -> dict[str, float]:
        metrics: dict[str, float] = {}
        fresh = 0
        for name, tasks in self._tasks.items():
            key = (name, step)
            if key in self._scores:
                continue
            summary = self._stored(name, step)
            if summary is None:
                groups = [handle.report for handle in await roll_out(name, tasks)]
                summary = self._summary(name, step, groups)
                fresh += 1
            self._scores[key] = summary
            on_score(summary)
            if summary.missing:
                logger.warning(
                    "evaluation of %s at step %d: %d of %d tasks have no score, since all of their "
                    "rollouts failed for reasons of their own; the mean is that of the others, but "
                    "where the best checkpoint is chosen they count as 0",
                    name,
                    step,
                    summary.missing,
                    summary.tasks,
                )
            if key not in self._logged:
                self._logged.add(key)
                metrics.update(summary.metrics())
        if fresh:
            seconds = metrics["timing_s/eval"] = self._now() - began
            if fresh == len(self._tasks):  # one that a kill has cut says nothing of a whole one
                self._took.append(seconds)
        return metrics

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of the evaluation at `step`; empty if there was none, or a signal ended it.

        A mean over some of the datasets must not be compared with one over all.
        """
        known = [self._scores.get((name, step)) for name in self._tasks]
        if None in known:
            return {}
        return {key: v for score in known if score for key, v in score.metrics().items()}

    def comparisons(self, step: int) -> tuple[Comparison, ...]:
        """Before training against `step`, for the datasets that have both."""
        pairs = ((name, self._score(name, 0), self._score(name, step)) for name in self._tasks)
        return tuple(
            Comparison(name=name, before=before, after=after)
            for name, before, after in pairs
            if before is not None and after is not None
        )

    def _score(self, name: str, step: int) -> EvalSummary | None:
        return self._scores.get((name, step)) or self._stored(name, step)

    def _stored(self, name: str, step: int) -> EvalSummary | None:
        groups = stored_groups(self._store, f"eval/{name}", step)
        if not groups:
            return None
        return self._summary(name, step, [report_of(group) for group in groups])

    def _summary(self, name: str, step: int, groups: Sequence[GroupReport]) -> EvalSummary:
        tasks = len(self._tasks[name])
        return summarise(name, step, groups, n_samples=self._n_samples, tasks=tasks)


def last_value(logged: Mapping[int, Mapping[str, float]], key: str) -> float:
    """The value of `key` at the latest step that has it; 0 if none has."""
    for step in sorted(logged, reverse=True):
        if key in logged[step]:
            return logged[step][key]
    return 0.0
