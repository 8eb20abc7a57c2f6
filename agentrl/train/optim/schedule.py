"""The learning rate as a pure function of how far the run is: steps done, and parts of one.

A run that is resumed, rolled back or replayed is at the same place again without any state.
"""

from __future__ import annotations

import math

from agentrl.config.schema import TrainSection


def learning_rate(step: int, train: TrainSection, *, update: int = 0, updates: int = 1) -> float:
    """Learning rate of one optimizer update of the step with this number, counted from 0.

    With n updates in a step, update j is at p = step + j / n of the run. Warm-up rises linearly,
    (p + 1/n) / (W + 1/n), and reaches the peak at step W = `warmup_steps`; after it the rate is
    constant, or falls linearly or along half a cosine towards zero at step `steps`. Where every
    step has n updates that is the schedule over n times as many updates which moves with each of
    them (document 002). n is the number that is planned, `train.minibatches` times
    `train.epochs_per_batch`: an update that is made before the step is complete has the same rate,
    however many of the others turn out to have nothing to train.

    Args:
        step: training steps done before.
        train: the schedule.
        update: which update of the step, from 0.
        updates: number of updates that a step is planned to have.

    Example:
        >>> train = TrainSection(learning_rate=1.0, warmup_steps=3)
        >>> learning_rate(1, train)
        0.5
        >>> learning_rate(1, train, update=1, updates=2)
        0.5714285714285714
    """
    at = step + update / updates
    if at < train.warmup_steps:
        return train.learning_rate * (at + 1 / updates) / (train.warmup_steps + 1 / updates)
    if train.schedule == "constant":
        return train.learning_rate
    span = max(1, train.steps - train.warmup_steps)
    left = max(0.0, 1.0 - (at - train.warmup_steps) / span)
    if train.schedule == "linear":
        return train.learning_rate * left
    return train.learning_rate * 0.5 * (1.0 - math.cos(math.pi * left))


def learning_rates(step: int, train: TrainSection, *, updates: int) -> tuple[float, ...]:
    """Rates of all updates of a step; that of the step itself where it has none."""
    number = max(1, updates)
    return tuple(learning_rate(step, train, update=j, updates=number) for j in range(number))
