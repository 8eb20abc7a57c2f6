"""The latest values as Prometheus gauges: from an HTTP endpoint of this process, or in a text file.

`eval/held_out/score` becomes `agentrl_eval_held_out_score{run="...",metric="eval/held_out/score"}`;
the label keeps apart what looks alike once a name has only letters, digits and underscores. A value
stays until the next one, and `agentrl_step` says which step the newest is of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from agentrl.metrics.names import find_metric
from agentrl.metrics.tracker import RunIdentity, SinkArgs

_FOREIGN = re.compile(r"\W", re.ASCII)


class PrometheusArgs(SinkArgs):
    """Config of `log.sinks.prometheus`: address of the endpoint."""

    port: int = Field(default=9464, ge=0, le=65535)
    """Of the endpoint; 0 takes any that is free."""
    host: str = "127.0.0.1"
    """Who may ask: this machine only. The endpoint has no password."""
    textfile: str | None = None
    """File to write instead, for the node exporter's textfile collector; ends in `.prom`."""


class PrometheusSink:
    """A `MetricSink` that others read from."""

    def __init__(self, args: PrometheusArgs, run: RunIdentity) -> None:
        """Nothing listens before the first write."""
        self._args, self._run = args, run
        self._step = 0
        self._values: dict[str, float] = {}
        self._registry: Any = None
        self._server: Any = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the endpoint; None while it does not listen."""
        return None if self._server is None else self._server.server_address[:2]

    def write(self, step: int, wall_time_s: float, values: Mapping[str, float]) -> None:
        """Replace what is shown of each of `values`."""
        self._step = step
        # A whole new mapping: the endpoint reads the old one from its own thread meanwhile.
        self._values = {**self._values, **values}
        if self._registry is None:
            self._registry = self._open()
        if self._args.textfile is not None:
            import prometheus_client

            prometheus_client.write_to_textfile(self._args.textfile, self._registry)

    def truncate_after(self, step: int) -> None:
        """The steps that are done again replace what is shown."""

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def collect(self) -> Iterator[Any]:
        """Yield the values to show, as the library asks for them."""
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, GaugeMetricFamily] = {}
        for name, value in {"step": float(self._step), **self._values}.items():
            exposed = f"agentrl_{_FOREIGN.sub('_', name)}"
            if exposed not in families:
                entry = find_metric(name)
                text = "steps done" if name == "step" else (entry.meaning if entry else name)
                families[exposed] = GaugeMetricFamily(exposed, text, labels=["run", "metric"])
            families[exposed].add_metric([self._run.name, name], value)
        yield from families.values()

    def _open(self) -> Any:
        import prometheus_client

        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        registry.register(self)  # pyright: ignore[reportArgumentType] - it asks for `collect` only
        if self._args.textfile is None:
            self._server, _ = prometheus_client.start_http_server(
                self._args.port, addr=self._args.host, registry=registry
            )
        else:
            Path(self._args.textfile).parent.mkdir(parents=True, exist_ok=True)
        return registry
