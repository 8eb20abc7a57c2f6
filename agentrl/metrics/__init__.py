"""Named values with a reduction rule, and the places they are written to."""

from agentrl.metrics.bag import MetricBag

__all__ = ["MetricBag"]
