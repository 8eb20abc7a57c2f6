"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from agentrl.config.schema import TrainSection


def learning_rate(step: int, train: TrainSection) -> float:
    """Learning rate of the step with this number, counted from 0.

    Warm-up rises linearly and reaches the peak at step `warmup_steps`; after it the rate is
    constant, or falls linearly or along half a cosine towards zero at step `steps`.

    Example:
        >>> learning_rate(1, TrainSection(learning_rate=1.0, warmup_steps=3))
        0.5
    """
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / (train.warmup_steps + 1)
    if train.schedule == "constant":
        return train.learning_rate
    span = max(1, train.steps - train.warmup_steps)
    left = max(0.0, 1.0 - (step - train.warmup_steps) / span)
    if train.schedule == "linear":
        return train.learning_rate * left
    return train.learning_rate * 0.5 * (1.0 - math.cos(math.pi * left))
