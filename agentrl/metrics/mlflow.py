"""Metrics for MLflow, through its tracking client; runs of other code in this process are left be.

Without a server the run goes into `RUN/sinks/mlflow`, which `mlflow ui --backend-store-uri` shows.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from agentrl.metrics.tracker import RunIdentity, SinkArgs, Tracker

_FOREIGN = re.compile(r"[^\w\-. /]")
_BATCH = 100
"""Params of one request, and far fewer metrics than the 1000 that MLflow takes at once."""
_PARAM_CHARS = 500


class MlflowArgs(SinkArgs):
    """Config of `log.sinks.mlflow`: the server and the experiment."""

    tracking_uri: str | None = None
    """Server or store; None is `MLFLOW_TRACKING_URI`, or else the run directory."""
    experiment: str = "agentrl"
    """Experiment there, made if needed."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""


class MlflowSink(Tracker):
    """A run of MLflow."""

    def __init__(self, args: MlflowArgs, run: RunIdentity) -> None:
        """Nothing is opened yet."""
        super().__init__()
        self._args, self._identity = args, run
        self._client: Any = None

    def _open(self) -> str:
        from mlflow import MlflowClient

        args, identity = self._args, self._identity
        uri = args.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (identity.sinks / "mlflow").absolute().as_uri()
        if uri.startswith("file:"):
            # mlflow wants a folder to be allowed; a user who wants a database names it.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = client = MlflowClient(tracking_uri=uri)
        kept = identity.kept_id("mlflow")
        if kept is not None:
            client.update_run(kept, status="RUNNING")
            return kept
        found = client.get_experiment_by_name(args.experiment)
        experiment = found.experiment_id if found else client.create_experiment(args.experiment)
        run = client.create_run(experiment, run_name=identity.name, tags=dict(args.tags))
        self._write_config(run.info.run_id)
        return identity.keep_id("mlflow", run.info.run_id)

    def _write_config(self, run_id: str) -> None:
        from mlflow.entities import Param

        params = [
            Param(tracked_name(key), str(value)[:_PARAM_CHARS])
            for key, value in self._identity.config.items()
        ]
        for part in _parts(params):
            self._client.log_batch(run_id, params=part)

    def _send(self, run: str, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        at_ms = round(1000 * wall_time_s)
        metrics = [Metric(tracked_name(name), v, at_ms, step) for name, v in values.items()]
        for part in _parts(metrics):
            self._client.log_batch(run, metrics=part)

    def _finish(self, run: str) -> None:
        self._client.set_terminated(run)


def tracked_name(name: str) -> str:
    """A name that MLflow takes: letters, digits, `_-. /`, and a path that leads nowhere else.

    Example:
        >>> tracked_name("eval/held_out/pass@2")
        'eval/held_out/pass_2'
    """
    plain = _FOREIGN.sub("_", name) or "_"
    tidy = posixpath.normpath(plain) == plain and not plain.startswith(("/", ".."))
    return plain if tidy else plain.replace("/", "_").replace("..", "_")


def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[at : at + _BATCH] for at in range(0, len(items), _BATCH)]
