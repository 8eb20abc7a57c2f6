"""Trajectory groups into optimizer updates: advantages, denominators, packing."""

from agentrl.batch.build import build_minibatch, build_step
from agentrl.batch.plan import StepSettings
from agentrl.batch.records import MicroBatch, PackedBatch, RowKey, StepBatch

__all__ = [
    "MicroBatch",
    "PackedBatch",
    "RowKey",
    "StepBatch",
    "StepSettings",
    "build_minibatch",
    "build_step",
]
