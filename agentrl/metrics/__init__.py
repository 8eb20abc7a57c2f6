"""Named values with a reduction rule, and the places they are written to."""

from agentrl.metrics.bag import MetricBag
from agentrl.metrics.sinks import JsonlSink, MetricSink, MetricsLog, TensorBoardSink, read_metrics

__all__ = [
    "JsonlSink",
    "MetricBag",
    "MetricSink",
    "MetricsLog",
    "TensorBoardSink",
    "read_metrics",
]
