"""Reader of a recorded run: nothing is locked or written, so the run may go on meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.plan import Plan, plan_run
from agentrl.data import TokenStore, TrajectoryStore
from agentrl.data.run.paths import RunPaths
from agentrl.data.run.read import read_object
from agentrl.disk.checkpoint import Checkpoint, list_checkpoints
from agentrl.disk.run_directory import read_identity, resolved_models
from agentrl.disk.stored_groups import stored_groups
from agentrl.errors import AgentrlError, RunError
from agentrl.metrics import read_metrics
from agentrl.types import TrainedTokens, TrajectoryGroup

_DAMAGED = (AgentrlError, OSError, LookupError, TypeError, ValueError)
"""What a file raises whose pages hold nonsense; stores themselves pass over those that are torn.
Arrow's exceptions are `ValueError` or `OSError`, or come as one of the others."""
_FAILED = re.compile(r"failed-step-(\d+)(?:\.part-0-of-\d+)?\.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run directory, for reading."""

    path: Path
    """Directory of the run."""
    plan: Plan
    """Its settings, with the model it began with."""
    store: TrajectoryStore
    """Trajectories of the run."""
    tokens: TokenStore
    """Trained tokens that its trainer recorded."""
    checkpoints: tuple[Checkpoint, ...]
    """Complete ones, by step."""

    def groups(self, step: int) -> list[TrajectoryGroup]:
        """The training groups of a step, as they were measured.

        Raises:
            RunError: there is no readable file of that step.
        """
        try:
            found = stored_groups(self.store, "train", step)
        except _DAMAGED:
            found = []
        if not found:
            raise RunError(f"{self.path} holds no readable trajectories of step {step}")
        return found

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics logged for a step; empty if none were."""
        found: dict[str, float] = {}
        for line in self._metric_lines():
            if line["step"] == step:
                numbers = {k: v for k, v in line.items() if isinstance(v, int | float)}
                found.update({k: v for k, v in numbers.items() if k not in ("step", "time")})
        return found

    def curve(self, name: str) -> dict[int, float]:
        """One metric by step, where it was logged as a number."""
        return {
            line["step"]: float(line[name])
            for line in self._metric_lines()
            if isinstance(line.get(name), float)
        }

    def _metric_lines(self) -> Iterator[dict[str, Any]]:
        file = RunPaths(self.path).metrics_file
        return read_metrics(file) if file.is_file() else iter(())

    def trained(self, step: int) -> list[TrainedTokens]:
        """Trained tokens of a step as the run stored them; empty if nothing readable is there."""
        try:
            return self.tokens.read(step)
        except _DAMAGED:
            return []

    def before(self, step: int) -> Checkpoint | None:
        """The newest checkpoint from which `step` is still to come; None is the run's beginning."""
        found = [point for point in self.checkpoints if point.state.step < step]
        return found[-1] if found else None

    def failed(self) -> dict[int, Path]:
        """Kept batches of steps that failed, by step."""
        matches = ((_FAILED.fullmatch(path.name), path) for path in self.path.glob("failed-*.pt"))
        return dict(sorted((int(match[1]), path) for match, path in matches if match))


def open_recorded(path: Path) -> RecordedRun:
    """The run at `path`, where it is running, was copied, or may not be written, too.

    Raises:
        RunError: it is not a run directory.
        ConfigError: its config is of another make.
    """
    stored, base = read_identity(path)
    config = resolved_models(stored, read_object(RunPaths(path).identity_file))
    return RecordedRun(
        path=path,
        plan=plan_run(config, base),
        store=TrajectoryStore(RunPaths(path).trajectories),
        tokens=TokenStore(RunPaths(path).tokens),
        checkpoints=tuple(
            point for point in list_checkpoints(RunPaths(path).checkpoints) if point.state.resumes
        ),
    )


def pick_step(run: RecordedRun, step: int | None, *, any_weights: bool = False) -> int:
    """The step that is meant; None is the newest of those whose weights are kept, or of all.

    Args:
        run: which run.
        step: from 1.
        any_weights: weights are given, or made again, so that any step will do.

    Raises:
        RunError: it is not stored; says which are.
    """
    steps = run.store.steps("train")
    if not steps:
        raise RunError(f"{run.path} holds no training steps yet")
    if step is None:
        kept = {0, *(point.state.step for point in run.checkpoints)}
        trainable = [number for number in steps if any_weights or number - 1 in kept]
        return (trainable or steps)[-1]
    if step not in steps:
        raise RunError(
            f"--step {step}: not stored in {run.path}; there are {len(steps)} steps from "
            f"{steps[0]} to {steps[-1]}"
        )
    return step
