"""Reads from a run directory the point at which its run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.data import TaskCursor
from agentrl.disk.checkpoint import (
    Checkpoint,
    checkpoint_to_resume,
    damaged_after,
    latest_checkpoint,
)
from agentrl.disk.rollback import logged_metrics, read_rollbacks
from agentrl.disk.run_directory import RunDir
from agentrl.runtime.assembly.parts import TaskSets
from agentrl.runtime.records import RunHistory

_ELAPSED = "timing_s/elapsed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The point at which a run goes on; for a new run, its start."""

    checkpoint: Checkpoint | None
    """The newest complete one."""
    damaged: tuple[Path, ...]
    """Newer ones, which are passed over."""
    weights_only: Path | None
    """A newer one without the state of the trainer: the stored steps since `checkpoint` are trained
    again; None without one."""
    cursor: TaskCursor
    """After the last task of the checkpoint."""
    leaps: Mapping[int, TaskCursor]
    """Later steps to which a rollback went back, and the cursor that takes over after each."""
    history: RunHistory
    """Steps done, lines logged, time spent."""


def resume_point(directory: RunDir, tasks: TaskSets, *, seed: int, steps: int) -> ResumePoint:
    """Read where the run stands.

    Args:
        directory: of the run.
        tasks: of its datasets.
        seed: of the order of the tasks.
        steps: as `train.steps`.

    Raises:
        DataError: the dataset is not the one the run was begun with.
        RunError: a rollback cannot be read.
    """

    latest = latest_checkpoint(directory.checkpoints)
    checkpoint = checkpoint_to_resume(directory.checkpoints, steps=steps)
    rollbacks = read_rollbacks(directory.path)
    done = checkpoint.state.step if checkpoint else 0
    leaps = {
        rollback.plan.to: TaskCursor.restore(
            tasks.train, rollback.plan.cursor, weights=tasks.weights, selection=tasks.selection
        )
        for rollback in rollbacks.in_effect
        if rollback.plan.to >= done
    }
    if done in leaps:
        cursor = leaps.pop(done)
    elif checkpoint:
        cursor = TaskCursor.restore(
            tasks.train,
            checkpoint.state.cursor,
            weights=tasks.weights,
            selection=tasks.selection,
        )
    else:
        cursor = TaskCursor(
            tasks.train, seed=seed, weights=tasks.weights, selection=tasks.selection
        )
    logged = logged_metrics(directory.metrics_file) if directory.metrics_file.is_file() else {}
    elapsed = [values[_ELAPSED] for values in logged.values() if _ELAPSED in values]
    if checkpoint:
        elapsed.append(checkpoint.state.elapsed_s)
    history = RunHistory(
        done=done,
        logged=logged,
        elapsed_s=max([*elapsed, rollbacks.elapsed_s]),
        rollbacks=rollbacks,
    )
    return ResumePoint(
        checkpoint=checkpoint,
        damaged=damaged_after(directory.checkpoints, latest.state.step if latest else 0),
        weights_only=latest.path if latest and latest.state.step > done else None,
        cursor=cursor,
        leaps=leaps,
        history=history,
    )
