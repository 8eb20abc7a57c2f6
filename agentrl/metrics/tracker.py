"""Base of all trackers of experiments: a run of theirs that goes on when ours does.

A tracker is opened at its first write, from a thread of its own (see `Guard`), so that a service
that does not answer costs a run nothing but the numbers there. The id of its run is kept in
`RUN/sinks/NAME.id`; a resume goes on with that run. What was written for steps that are done again
stays where it is: of two values of one step the later one counts.
"""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentrl.machine.files import write_whole

_ATTEMPTS = 3
"""So often a tracker is opened before it is given up."""


class SinkArgs(BaseModel):
    """Arguments that every sink takes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    names: Literal["agentrl", "verl"] = "agentrl"
    """Whose names the metrics go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """The run whose metrics they are."""

    directory: Path
    """Directory of the run."""
    name: str
    """`run.name`."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted key to a value that JSON can hold."""
    n_samples: int = 1
    """Rollouts for each task of an evaluation."""

    @property
    def sinks(self) -> Path:
        """Folder for what sinks keep."""
        return self.directory / "sinks"

    def kept_id(self, sink: str) -> str | None:
        """The id of this run at a tracker; None before it has one."""
        path = self.sinks / f"{sink}.id"
        return path.read_text(encoding="utf-8").strip() or None if path.is_file() else None

    def keep_id(self, sink: str, value: str) -> str:
        """Remember the id of this run at a tracker, and return it."""
        self.sinks.mkdir(parents=True, exist_ok=True)
        write_whole(self.sinks / f"{sink}.id", f"{value}\n".encode())
        return value

    def id_for(self, sink: str) -> str:
        """The id kept, or a new one."""
        return self.kept_id(sink) or self.keep_id(sink, uuid.uuid4().hex[:12])


class Tracker(ABC):
    """A `MetricSink` that is opened when it is first needed."""

    def __init__(self) -> None:
        self._run: Any = None
        self._attempts = 0

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Send the finite values of one step."""
        finite = {name: float(v) for name, v in values.items() if math.isfinite(v)}
        self._send(self._opened(), step, wall_time_s, finite)

    def truncate_after(self, step: int) -> None:  # noqa: B027 - nothing to do is what it does
        """Trackers take nothing back; see the module."""

    def close(self) -> None:
        """End the run there. Idempotent."""
        run, self._run = self._run, None
        if run is not None:
            self._finish(run)

    def _opened(self) -> Any:
        if self._run is None:
            if self._attempts >= _ATTEMPTS:
                raise ConnectionError(f"given up after {_ATTEMPTS} attempts to open it")
            self._attempts += 1
            self._run = self._open()
        return self._run

    @abstractmethod
    def _open(self) -> Any:
        """Begin a run there, or go on with the one that is kept."""

    @abstractmethod
    def _send(
        self, run: Any, step: int, wall_time_s: float, values: Mapping[str, float]
    ) -> None: ...

    @abstractmethod
    def _finish(self, run: Any) -> None: ...


class WandbArgs(SinkArgs):
    """`log.sinks.wandb`; what is not given here is taken from the variables W&B reads."""

    project: str = "agentrl"
    """Project there."""
    entity: str | None = None
    """Team or user."""
    group: str | None = None
    """Group of runs."""
    tags: list[str] = Field(default_factory=list)
    """Tags of the run."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes into the run directory, for `wandb sync`."""


class WandbSink(Tracker):
    """A run of Weights & Biases."""

    def __init__(self, args: WandbArgs, run: RunIdentity) -> None:
        """Nothing is opened yet."""
        super().__init__()
        self._args, self._identity = args, run

    def _open(self) -> Any:
        import wandb

        args, identity = self._args, self._identity
        identity.sinks.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=args.project,
            entity=args.entity,
            group=args.group,
            tags=args.tags or None,
            mode=args.mode,
            id=identity.id_for("wandb"),
            resume="allow",
            name=identity.name,
            dir=str(identity.sinks),
            config=dict(identity.config),
            reinit="create_new",
            save_code=False,
            # Numbers only: no output, no code, nothing about the machine.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_save_requirements=False,
                login_timeout=30,
            ),
        )
        # The steps of W&B only grow; ours begin again after a resume, so they are a value.
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        return run

    def _send(self, run: Any, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        run.log({**values, "step": step})

    def _finish(self, run: Any) -> None:
        run.finish()


class TrackioArgs(SinkArgs):
    """`log.sinks.trackio`; `TRACKIO_DIR` names where it keeps local runs."""

    project: str = "agentrl"
    """Project there."""
    group: str | None = None
    """Group of runs."""
    space_id: str | None = None
    """Hugging Face Space to log to; None is this machine."""
    server_url: str | None = None
    """Server of your own to log to."""


class TrackioSink(Tracker):
    """A run of trackio, on this machine unless set otherwise."""

    def __init__(self, args: TrackioArgs, run: RunIdentity) -> None:
        """Nothing is opened yet."""
        super().__init__()
        self._args, self._identity = args, run

    def _open(self) -> Any:
        import trackio

        args, identity = self._args, self._identity
        return trackio.init(
            project=args.project,
            group=args.group,
            space_id=args.space_id,
            server_url=args.server_url,
            # It finds a run again by its name, and other runs may be called the same.
            name=f"{identity.name}-{identity.id_for('trackio')}",
            resume="allow",
            config=dict(identity.config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _send(self, run: Any, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        run.log(dict(values), step=step)

    def _finish(self, run: Any) -> None:
        run.finish()
