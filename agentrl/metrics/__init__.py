"""Named values with a reduction rule, what each means, and the sinks they are written to."""

from agentrl.metrics.bag import MetricBag
from agentrl.metrics.catalog import CATALOG, MetricName
from agentrl.metrics.names import find_metric, verl_name
from agentrl.metrics.sinks import JsonlSink, MetricSink, MetricsLog, TensorBoardSink, read_metrics

__all__ = [
    "CATALOG",
    "JsonlSink",
    "MetricBag",
    "MetricName",
    "MetricSink",
    "MetricsLog",
    "TensorBoardSink",
    "find_metric",
    "read_metrics",
    "verl_name",
]
