"""Opens every sink of the metrics of a run, as its config asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.config import RunConfig
from agentrl.config.fit import FitConfig
from agentrl.config.keys import dotted
from agentrl.config.schema import LogSection
from agentrl.metrics import external
from agentrl.metrics.sinks import JsonlSink, MetricSink, MetricsLog, TensorBoardSink
from agentrl.metrics.tracker import RunIdentity

if TYPE_CHECKING:
    from agentrl.disk.run_directory import RunDir


def open_metrics(directory: RunDir, config: RunConfig | FitConfig) -> MetricsLog:
    """The sinks of the config; JSON lines always.

    Raises:
        ConfigError: a sink that the config gets wrong, or whose library is not installed.
    """

    run = RunIdentity(
        directory=directory.path,
        name=config.run.name,
        config=dotted(config.model_dump(mode="json")),
        n_samples=config.eval.n_samples if isinstance(config, RunConfig) else 1,
    )
    slow = external.open_sinks(config.log.sinks, run)
    sinks: list[MetricSink] = [JsonlSink(directory.metrics_file)]
    if config.log.tensorboard:
        sinks.append(TensorBoardSink(directory.tensorboard))
    return MetricsLog(sinks, slow)


def check_sinks(section: LogSection) -> str:
    """Refuse what `open_metrics` would refuse, before anything is loaded.

    Returns:
        Names of the sinks, for the log.

    Raises:
        ConfigError: see `open_metrics`.
    """

    external.check_sinks(section.sinks)
    sinks = ["metrics.jsonl", *(["TensorBoard"] if section.tensorboard else [])]
    return ", ".join([*sinks, *section.sinks])
