"""Scores of the checkpoints of a fit, by rollouts: what a fit asks for `eval.rollouts`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.config.plan import Plan
from agentrl.fit.rollouts import CheckpointScorer
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.checks.task_faults import scored_tasks
from agentrl.runtime.launch import check_parts
from agentrl.runtime.progress import Progress
from agentrl.runtime.sampling.sample import score_policy


class RolloutScorer(CheckpointScorer):
    """Scores a checkpoint as `agentrl eval` scores a policy."""

    def __init__(self, progress: Callable[[], Progress] = Progress) -> None:
        """Roll nothing out yet.

        Args:
            progress: makes what is notified of the rollouts of one evaluation.
        """
        self._progress = progress

    def check(self, plan: Plan) -> None:
        """`check` as in `CheckpointScorer.check`."""
        check_parts(plan)
        scored_tasks(plan)

    async def score(
        self, plan: Plan, *, model_path: str, run_dir: Path, step: int, stop: StopSwitch
    ) -> Mapping[str, float]:
        """`score` as in `CheckpointScorer.score`."""
        summaries = await score_policy(
            plan,
            model_path=model_path,
            out=run_dir,
            step=step,
            progress=self._progress(),
            stop=stop,
        )
        return {key: value for found in summaries for key, value in found.metrics().items()}
