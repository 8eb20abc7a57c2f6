"""A recorded step trained once more under torch's profiler, with its phases by name.

The trace is the one that `torch.profiler` writes; to it comes what the run recorded of the rollouts
of that step: each rollout a track, its turns one after the other. Only their durations are
recorded, so every track begins at 0, and none waits.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.replay.recorded_run import RecordedRun, pick_step
from agentrl.cli.replay.step import before_step, weights_before
from agentrl.errors import RunError
from agentrl.machine.files import replacing
from agentrl.types import TrajectoryGroup

if TYPE_CHECKING:
    from torch.profiler import profile

_ROLLOUTS = 1_000_000_000
"""Number of the made-up process that holds the recorded rollouts; no kernel gives one so high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A phase or an operator of a profiled step."""

    name: str
    """Its name."""
    calls: int
    """Times that it ran."""
    seconds: float
    """Seconds of all of them: of a phase with all in it, of an operator without those it calls;
    threads that run at once add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Times of one step of training."""

    step: int
    """Which."""
    seconds: float
    """Wall time of the step."""
    file: Path
    """The trace."""
    phases: tuple[Share, ...]
    """Phases in the order in which they began."""
    operators: tuple[Share, ...]
    """Operators, or kernels of a GPU, the longest first."""


def profile_step(
    run: RecordedRun,
    step: int | None,
    *,
    out: Path,
    checkpoint: Path | None = None,
    retrain: bool = False,
    warm_up: int = 1,
) -> StepProfile:
    """Train a step under the profiler, and write its trace.

    Args:
        run: which run; it is only read.
        step: from 1; None is the newest whose weights before it are kept.
        out: file of the trace, `.json` or `.json.gz`; there whole, or not at all.
        checkpoint: whose weights to train from; None looks for one that fits.
        retrain: whether to train the steps since an older checkpoint again, if none fits.
        warm_up: times that the step is trained before the one that is profiled.

    Raises:
        RunError: the step is not stored, or the weights before it are gone.
        AgentrlError: the run's model cannot be trained here.
    """
    from torch.profiler import profile

    number = pick_step(run, step, any_weights=retrain or checkpoint is not None)
    start, why = weights_before(run, number, checkpoint, retrain=retrain)
    if why:
        raise RunError(why)
    with tempfile.TemporaryDirectory(prefix="agentrl-profile-") as scratch:
        trainer, prepared = before_step(run, number, start, Path(scratch))
        for _ in range(warm_up):
            trainer.step(prepared.batch)
        with profile(**_settings()) as profiler:
            began = time.perf_counter()
            trainer.step(prepared.batch)
            _wait_for_device()
            seconds = time.perf_counter() - began
        trace = Path(scratch) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        _write(trace, out, run.groups(number))
    phases, operators = _shares(profiler)
    return StepProfile(step=number, seconds=seconds, file=out, phases=phases, operators=operators)


def _settings() -> dict[str, Any]:
    """Every thread, since micro-batches are trained in several; and the GPU where there is one."""
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return {
        "activities": activities,
        "experimental_config": _ExperimentalConfig(profile_all_threads=True),
        "acc_events": True,
    }


def _wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _shares(profiler: profile) -> tuple[tuple[Share, ...], tuple[Share, ...]]:
    from agentrl.train.meter.phases import PREFIX

    phases: list[tuple[float, Share]] = []
    operators: list[Share] = []
    first: dict[str, float] = {}
    for event in profiler.events() or ():
        began = float(event.time_range.start or 0.0)
        first[event.name] = min(first.get(event.name, began), began)
    for event in profiler.key_averages():
        if event.key.startswith(PREFIX):
            share = Share(
                name=event.key.removeprefix(PREFIX),
                calls=event.count,
                seconds=event.cpu_time_total / 1e6,
            )
            phases.append((first.get(event.key, 0.0), share))
            continue
        own = event.self_device_time_total or event.self_cpu_time_total
        operators.append(Share(name=event.key, calls=event.count, seconds=own / 1e6))
    operators.sort(key=lambda share: -share.seconds)
    return tuple(share for _, share in sorted(phases, key=lambda pair: pair[0])), tuple(operators)


def _write(trace: Path, out: Path, groups: Iterable[TrajectoryGroup]) -> None:
    found = json.loads(trace.read_text())
    found["traceEvents"] += _rollout_events(groups, start=_first(found["traceEvents"]))
    text = json.dumps(found).encode()
    with replacing(out) as path:
        path.write_bytes(gzip.compress(text, 3) if out.suffix == ".gz" else text)


def _first(events: Iterable[dict[str, Any]]) -> float:
    return min((event["ts"] for event in events if event.get("ph") == "X"), default=0.0)


def _rollout_events(groups: Iterable[TrajectoryGroup], *, start: float) -> Iterator[dict[str, Any]]:
    """Tracks of the recorded rollouts, in the trace format that Chrome and Perfetto read."""
    name = "rollouts as recorded (every one from 0)"
    yield {"ph": "M", "name": "process_name", "pid": _ROLLOUTS, "args": {"name": name}}
    rollouts = (rows for group in groups for rows in group.rollouts())
    for track, rows in enumerate(rollouts, 1):
        last = rows[-1]
        label = f"{last.rollout_id}: {last.termination.value}"
        yield {
            "ph": "M", "name": "thread_name", "pid": _ROLLOUTS, "tid": track,
            "args": {"name": label},
        }  # fmt: skip
        at = start
        for turn in (turn for row in rows for turn in row.turns):
            length = turn.duration_s * 1e6
            what = "sampled" if turn.role == "assistant" else turn.role
            yield {
                "ph": "X", "cat": "rollout", "name": what, "pid": _ROLLOUTS, "tid": track,
                "ts": at, "dur": length, "args": {"tokens": turn.end - turn.start},
            }  # fmt: skip
            at += length
