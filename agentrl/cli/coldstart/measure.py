"""Measure of a policy on held-out tasks: how often it calls tools, solves, and varies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl.cli.console.report import beside_table
from agentrl.data import TrajectoryStore
from agentrl.runtime.scoring.stored_scores import PolicyScores, read_scores
from agentrl.types import CallStatus, ToolStatus, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutMeasure:
    """A policy on the held-out tasks."""

    scores: PolicyScores
    """Scores by data set; empty for stored solutions."""
    rollouts: int
    """Rollouts that count."""
    calls: int
    """Rollouts of them in which a tool was called and ran."""
    tasks: int
    """Tasks with a rollout that counts."""
    mixed: int
    """Tasks of them whose rollouts were not all paid the same: only these teach."""

    def doubts(self, before: HeldOutMeasure, *, calls: bool) -> Iterator[str]:
        """Reasons why RL would not learn from here.

        Args:
            before: the same before the fit.
            calls: whether the solutions call tools.
        """
        if calls and not self.calls:
            yield (
                f"no tool was called in {self.rollouts} rollouts, though the solutions call some; "
                "give it more: --epochs twice as many, more tasks, or --learning-rate 1e-4"
            )
        solved = all(found.score.mean > 0.99 for found in self.scores.by_dataset.values())
        if not self.mixed and solved:
            yield "every held-out task is solved every time, so there is nothing left for RL"
        elif not self.mixed:
            yield (
                f"all rollouts of each of {self.tasks} held-out tasks were paid the same, so RL "
                "has nothing to choose from; fit less (fewer --epochs, --learning-rate 2e-5) if "
                "pass@1 is high, and more if it is 0"
            )

    def report(self, before: HeldOutMeasure, console: Console) -> None:
        """Print both side by side."""
        console.print(beside_table(self.scores, [before.scores]))
        for name, found in {"before": before, "after": self}.items():
            text = (
                f"{name}: tools are called in {found.calls} of {found.rollouts} rollouts; rewards "
                f"differ within {found.mixed} of {found.tasks} tasks"
            )
            console.print(text, markup=False, soft_wrap=True)

    def as_dict(self) -> dict[str, Any]:
        """Counts and scores for `result.json`."""
        counts = {name: getattr(self, name) for name in ("rollouts", "calls", "tasks", "mixed")}
        scores = {name: found.metrics() for name, found in self.scores.by_dataset.items()}
        return {**counts, "scores": scores}


def measured(folder: Path, *, policy: str, kind: str | None = None) -> HeldOutMeasure:
    """Read what a folder of `agentrl eval` stores, or with `kind` the rollouts of that kind."""
    store = TrajectoryStore(folder / "trajectories")
    called: dict[str, bool] = {}
    paid: dict[str, dict[str, float]] = {}
    for name in [kind] if kind else store.kinds():
        for stored in store.read(name):
            row = stored.trajectory
            if row.rule.reward_trusted and row.reward is not None:
                called[row.rollout_id] = called.get(row.rollout_id, False) or calls_of(row)
                paid.setdefault(f"{name} {row.task_id}", {})[row.rollout_id] = row.reward
    scores: Mapping[str, Any] = {} if kind else read_scores(folder).by_dataset
    return HeldOutMeasure(
        scores=PolicyScores(policy=policy, by_dataset=scores),
        rollouts=len(called),
        calls=sum(called.values()),
        tasks=len(paid),
        mixed=sum(len(set(rewards.values())) > 1 for rewards in paid.values()),
    )


def calls_of(row: Trajectory) -> bool:
    """True if a tool was called and gave a result."""
    results = [result.status for turn in row.turns for result in turn.tool_results]
    calls = [call.status for turn in row.turns for call in turn.tool_calls]
    return CallStatus.OK in calls and ToolStatus.OK in results
