"""An ensemble of reward models in one run directory: its members are fits of their own.

RUN/members/0    seed run.seed        each with checkpoints, metrics and logs as any fit has,
RUN/members/1    seed run.seed + 1    and resumed as any fit is
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from agentrl.config.fit import FitConfig
from agentrl.disk.other_models import MEMBERS, member_runs
from agentrl.disk.run_directory import RunDir
from agentrl.disk.run_name import holds_a_run
from agentrl.errors import AgentrlError
from agentrl.fit.heads import ENSEMBLE_HEAD_STD
from agentrl.fit.progress import FitProgress, FitResult


class FitOne(Protocol):
    """Makes one fit, as `agentrl.fit.launch.fit`."""

    def __call__(
        self, config: FitConfig, *, base: Path, run_dir: RunDir | None, progress: FitProgress
    ) -> Awaitable[FitResult]:
        """Train from the first step, or go on in `run_dir`."""
        ...


def member_config(config: FitConfig, number: int, run: Path) -> FitConfig:
    """The fit of one member.

    Args:
        config: of the ensemble.
        number: of the member, from 0.
        run: run directory of the ensemble.
    """
    objective = config.objective
    assert objective.kind == "rm"
    head_std = objective.head_std or ENSEMBLE_HEAD_STD
    own = objective.model_copy(update={"ensemble": 1, "head_std": head_std})
    section = config.run.model_copy(
        update={
            "seed": config.run.seed + number,
            "dir": str(run.resolve() / MEMBERS),
            "name": str(number),
        }
    )
    return config.model_copy(update={"objective": own, "run": section})


async def fit_members(
    config: FitConfig,
    fit_one: FitOne,
    *,
    base: Path,
    run_dir: RunDir | None,
    progress: FitProgress,
) -> FitResult:
    """Train the members of an ensemble one after the other; those that are done are passed quickly.

    Args:
        config: with an ensemble of at least 2.
        fit_one: makes the fit of a member.
        base: folder that relative paths of the config start from.
        run_dir: the locked directory of an ensemble to resume; None begins a new one.
        progress: notified of what happens.

    Returns:
        The result of the last member, with the run directory of the ensemble.

    Raises:
        AgentrlError: as `fit_one`.
        Interrupted: SIGINT or SIGTERM; what the member at work had done is saved.
    """
    assert config.objective.kind == "rm"
    count = config.objective.ensemble
    directory = run_dir or RunDir.create(config, base=base)
    seconds, result = 0.0, None
    try:
        config = directory.resolve_models(config)
        for number in range(count):
            own = member_config(config, number, directory.path)
            path, there = directory.path / MEMBERS / str(number), None
            if holds_a_run(path):
                there, _, _ = RunDir.resume_fit(path)
                there.adopt(own, base=base)
            progress.note(f"member {number + 1} of {count}")
            result = await fit_one(own, base=base, run_dir=there, progress=progress)
            seconds += result.seconds
    except AgentrlError:
        if run_dir is None and not any(map(holds_a_run, member_runs(directory.path))):
            shutil.rmtree(directory.path / MEMBERS, ignore_errors=True)
            directory.discard()
        raise
    finally:
        directory.close()
    assert result is not None
    return FitResult(
        path=directory.path,
        steps=result.steps,
        seconds=seconds,
        before=result.before,
        after=result.after,
        members=tuple(member_runs(directory.path)),
    )
