"""`log.sinks`: the sinks beside the run directory, their arguments, and opening them.

A mistake in the config is refused before a run begins. What goes wrong later, from a service that
cannot be reached to a port that is taken, is a warning in the log of the run and nothing else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agentrl.errors import ConfigError, choices
from agentrl.metrics.mlflow import MlflowArgs, MlflowSink
from agentrl.metrics.names import verl_names
from agentrl.metrics.prometheus import PrometheusArgs, PrometheusSink
from agentrl.metrics.sinks import MetricSink
from agentrl.metrics.tracker import (
    RunIdentity,
    SinkArgs,
    TrackioArgs,
    TrackioSink,
    WandbArgs,
    WandbSink,
)
from agentrl.plugins.distribution import install_command


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of sink."""

    package: str
    """Name of the imported package."""
    args: type[SinkArgs]
    """Class of its arguments."""
    make: Any
    """Called with args and `RunIdentity`."""


_KINDS: Mapping[str, _Kind] = {
    "wandb": _Kind(package="wandb", args=WandbArgs, make=WandbSink),
    "trackio": _Kind(package="trackio", args=TrackioArgs, make=TrackioSink),
    "mlflow": _Kind(package="mlflow", args=MlflowArgs, make=MlflowSink),
    "prometheus": _Kind(package="prometheus_client", args=PrometheusArgs, make=PrometheusSink),
}


class VerlNamed:
    """Passes the values of a step on under the names that verl gives them."""

    def __init__(self, sink: MetricSink, *, n_samples: int) -> None:
        """Wrap a sink.

        Args:
            sink: gets the values.
            n_samples: rollouts for each task of an evaluation, part of verl's names of scores.
        """
        self._sink, self._n_samples = sink, n_samples
        self.name = type(sink).__name__
        """Sink name in failure messages."""

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Write the values under the names of verl."""
        self._sink.write(step, wall_time_s, verl_names(values, n_samples=self._n_samples))

    def truncate_after(self, step: int) -> None:
        """Truncate the wrapped sink after a step."""
        self._sink.truncate_after(step)

    def close(self) -> None:
        """Close the sink that is wrapped."""
        self._sink.close()


def check_sinks(sinks: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse what `open_sinks` could not open, without opening anything.

    Raises:
        ConfigError: an unknown sink or argument, a value of the wrong kind, or a library that is
            not installed.
    """
    for name, arguments in sinks.items():
        kind, _ = _parsed(name, arguments)
        if importlib.util.find_spec(kind.package) is None:
            raise ConfigError(
                f"log.sinks.{name} needs {kind.package!r}, which is not installed; run "
                f"{install_command(name)}, or take {name} out of log.sinks"
            )


def open_sinks(sinks: Mapping[str, Mapping[str, Any]], run: RunIdentity) -> list[MetricSink]:
    """The sinks of a config; they connect to their services at the first write.

    All of them may wait for a network or a file server: give them to `MetricsLog` as `slow`.

    Raises:
        ConfigError: see `check_sinks`.
    """
    check_sinks(sinks)
    opened: list[MetricSink] = []
    for name, arguments in sinks.items():
        kind, args = _parsed(name, arguments)
        sink: MetricSink = kind.make(args, run)
        if args.names == "verl":
            sink = VerlNamed(sink, n_samples=run.n_samples)
        opened.append(sink)
    return opened


def _parsed(name: str, arguments: Mapping[str, Any] | None) -> tuple[_Kind, SinkArgs]:
    if name not in _KINDS:
        raise ConfigError(f"log.sinks: {choices(name, _KINDS)}")
    kind = _KINDS[name]
    given = dict(arguments or {})
    for key in given:
        if key not in kind.args.model_fields:
            raise ConfigError(f"log.sinks.{name}: {choices(str(key), kind.args.model_fields)}")
    try:
        return kind, kind.args(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (f"log.sinks.{name}", *first["loc"])))
        raise ConfigError(f"{where}: {first['msg']}, got {first['input']!r}") from error
