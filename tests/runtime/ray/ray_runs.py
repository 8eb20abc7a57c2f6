"""Runs of the tiny project over Ray, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.config import RunConfig, load_config
from agentrl.config.plan import plan_run
from agentrl.data import TrajectoryStore
from agentrl.disk.metric_sinks import open_metrics
from agentrl.disk.run_directory import RunDir
from agentrl.disk.run_name import holds_a_run, run_path
from agentrl.machine.processes.stop import StopSwitch
from agentrl.runtime.assembly.parts import load_task_sets
from agentrl.runtime.assembly.resume_point import resume_point
from agentrl.runtime.drivers.choose import make_run
from agentrl.runtime.progress import Progress
from agentrl.runtime.ray.launch import RayCluster
from agentrl.runtime.records import OpenStages, Parts, RunResult
from tests.runtime.tiny_project import Agentrl

Watch = Callable[[OpenStages, RunDir], Awaitable[None]]


async def take_any(url: str, backend: str) -> None:
    """Let every server join."""


async def drive(
    path: Path, *overrides: str, watch: Watch | None = None, stop: StopSwitch | None = None
) -> RunResult:
    """Run, or go on with, the run of a config; `watch` runs beside it."""
    config: RunConfig = load_config(path, ("runtime=ray", *overrides))
    base = path.parent
    plan = plan_run(config, base)
    tasks = load_task_sets(plan.tasks)
    if holds_a_run(run_path(config.run)):
        directory, _, _ = RunDir.resume(run_path(config.run))
    else:
        directory = RunDir.create(config, base=base)
    point = resume_point(directory, tasks, seed=config.run.seed, steps=config.train.steps)
    metrics = open_metrics(directory, config)
    try:
        async with RayCluster().open(
            plan,
            run_dir=directory.path,
            trajectories=directory.trajectories,
            checkpoint=point.checkpoint,
            note=logging.getLogger(__name__).warning,
            check_server=take_any,
        ) as opened:
            parts = Parts(
                stages=opened.stages,
                cursor=point.cursor,
                leaps=dict(point.leaps),
                eval_tasks=tasks.evals,
                store=TrajectoryStore(directory.trajectories),
                metrics=metrics,
                in_flight=64,
            )
            run = make_run(
                plan.schedule,
                directory,
                parts,
                history=point.history,
                progress=Progress(),
                stop=stop or StopSwitch(),
            )
            watching = asyncio.ensure_future(watch(opened, directory)) if watch else None
            try:
                return await run.run()
            finally:
                if watching:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
    finally:
        metrics.close()
        directory.close()


def children(pid: int, *words: str) -> list[int]:
    """All processes below `pid`, also those whose parent has ended, that hold one of `words`."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text()
                state, parent = stat.rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(folder.name)] = int(parent)
                    lines[int(folder.name)] = (folder / "cmdline").read_text()
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return [p for p in sorted(found - {pid}) if not words or any(w in lines[p] for w in words)]


def gone(pids: list[int], *, limit_s: float = 120.0) -> bool:
    """Whether all of them end within the limit."""
    deadline = time.monotonic() + limit_s
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def line_of(pid: int) -> str:
    """What a process is, for the message of a test that fails."""
    try:
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    except OSError:
        return f"{pid} ended"


def wait_until(true: Callable[[], bool], *, limit_s: float = 120.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, f"not true within {limit_s:g} s"
        time.sleep(0.05)


def pid_of(process: Agentrl) -> int:
    """Of a real `agentrl` process."""
    pid = process._process.pid
    assert pid is not None
    return pid
