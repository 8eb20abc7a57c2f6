"""The records of a run: its parts, what earlier processes left, how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.disk.rollback import Rollbacks
from agentrl.fit.reward_models.versions import RewardRefresher
from agentrl.health.rules import Rule, RuleAction, Streak
from agentrl.runtime.scores import Comparison
from agentrl.runtime.stages import Stages
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.data import TaskCursor, TrajectoryStore
    from agentrl.metrics.sinks import MetricsLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The effect of a rule on the run now."""

    rule: Rule
    """Which rule."""
    streak: Streak
    """Reason for it."""
    action: RuleAction
    """What happens: that of the rule, or `stop` where a rollback is not possible."""
    back_to: int | None = None
    """Step of the checkpoint of a rollback."""
    instead: str = ""
    """Reason why it is not the action of the rule."""

    @property
    def text(self) -> str:
        """The rule, its evidence, and what is different."""
        text = f"rule '{self.rule.text}': {self.streak.evidence}"
        return f"{text}; {self.instead}" if self.instead else text

    def as_dict(self) -> dict[str, Any]:
        """The entry of `result.json`."""
        return {
            "rule": self.rule.text,
            "evidence": self.streak.evidence,
            "first_step": self.streak.steps[0],
            "last_step": self.streak.steps[-1],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run and its scores."""

    run_dir: Path
    """Directory of the run."""
    steps: int
    """Training steps done."""
    reason: str
    """Why it ended: `all steps done`, `time is up`, or the rule that ended it with its evidence."""
    comparisons: tuple[Comparison, ...]
    """Scores before and after, one entry a dataset."""
    elapsed_s: float
    """Wall time over all processes of the run in seconds, without pauses."""
    ruling: Ruling | None = None
    """The rule that ended it."""

    def as_dict(self) -> dict[str, Any]:
        """The entry of `result.json`."""
        ruled = {} if self.ruling is None else {"rule": self.ruling.as_dict()}
        return {
            "steps": self.steps,
            "reason": self.reason,
            **ruled,
            "elapsed_s": round(self.elapsed_s, 1),
            "scores": {item.name: item.as_dict() for item in self.comparisons},
        }


@dataclass(slots=True, kw_only=True)
class Parts:
    """The opened stages and the disk of a run, for its driver."""

    stages: Stages
    """Stages that roll out, sample and learn."""
    cursor: TaskCursor
    """Training tasks, standing after the last task of `done` steps."""
    leaps: dict[int, TaskCursor] = field(default_factory=dict[int, "TaskCursor"])
    """Cursors that take over after later steps, which rollbacks went back to; each is used once."""
    eval_tasks: Mapping[str, Sequence[Task]]
    """Tasks of each `eval.datasets` entry."""
    store: TrajectoryStore
    """Stored trajectories; the learner writes them."""
    metrics: MetricsLog
    """Log of all metrics."""
    in_flight: int
    """Most rollouts at once."""
    slots_per_engine: int | None = None
    """Rollouts that one engine decodes at once; None where engines share the trainer's weights."""
    refresh: RewardRefresher | None = None
    """Keeps a reward model up to date; None where none is refreshed."""


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """State that earlier processes of the run left; a fresh run starts with the defaults."""

    done: int = 0
    """Steps whose weights are loaded."""
    logged: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Step to its line in `metrics.jsonl`; NaN where a value was not finite."""
    elapsed_s: float = 0.0
    """Wall time of earlier processes in seconds."""
    rollbacks: Rollbacks = field(default_factory=Rollbacks)
    """Rollbacks that are done."""
