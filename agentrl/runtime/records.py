"""The records of a run: its cluster, its parts, what earlier processes left, how it ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.fleet import RayRuntime, ServingSection
from agentrl.config.plan import Plan
from agentrl.disk.checkpoint import Checkpoint
from agentrl.disk.rollback import Rollbacks
from agentrl.fit.reward_models.versions import RewardRefresher
from agentrl.health.rules import Rule, RuleAction, Streak
from agentrl.plugins.registry import Registry
from agentrl.runtime.scores import Comparison
from agentrl.runtime.stages import Stages
from agentrl.types import Task

if TYPE_CHECKING:
    from agentrl.data import TaskCursor, TrajectoryStore
    from agentrl.metrics.sinks import MetricsLog


CheckServer = Callable[[str, str], Awaitable[None]]
"""`(url, backend)`: raises for a server that a run cannot use with weights by this backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStages:
    """The stages of a run, and their descriptions."""

    stages: Stages
    """For a driver."""
    model: str
    """Describes the model and the engines that sample from it."""
    sandbox: str
    """Describes the sandboxes."""
    actor_lines: Sequence[str] = ()
    """One line for each actor: `rank 0: process 123 on 10.0.0.1`."""


class RunCluster(ABC):
    """Machines that the stages of a run are opened on, where `runtime` asks for more than one."""

    @abstractmethod
    async def check(self, section: RayRuntime, serving: ServingSection) -> str:
        """Check that there is room for the run, and describe what was found; starts nothing.

        Args:
            section: which cluster, and what the run takes of it.
            serving: engines of the run.

        Raises:
            ConfigError: there is no cluster, or it is too small.
        """

    @abstractmethod
    def open(
        self,
        plan: Plan,
        *,
        run_dir: Path,
        trajectories: Path,
        checkpoint: Checkpoint | None,
        note: Callable[[str], None],
        check_server: CheckServer,
    ) -> AbstractAsyncContextManager[OpenStages]:
        """Start what the stages run in; it is ended in every case.

        Args:
            plan: of the run.
            run_dir: of the run, with its `run.json`; a folder that all machines share.
            trajectories: folder of the store; likewise.
            checkpoint: to go on from.
            note: called with each line for the user.
            check_server: refuses a server that asks to join the run.

        Raises:
            AgentrlError: whatever does not fit, named.
        """


CLUSTERS = Registry[RunCluster](
    "runtime.kind", own="a cluster", entry=lambda _, found: found(), words=("local",)
)
_KNOWN = {"ray": "agentrl.runtime.ray.launch:RayCluster"}


def find_cluster(kind: str) -> RunCluster | None:
    """The cluster that `runtime.kind` names, loaded now; None for this machine alone."""
    return None if kind == "local" else CLUSTERS.find(_KNOWN.get(kind, kind))


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
