"""Train on the batch of a failed step again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.metrics.bag import MetricBag
from agentrl.train.failed_step import load_failed_step

if TYPE_CHECKING:
    from agentrl.train.trainer import Trainer


def replay_failed_step(path: Path, trainer: Trainer) -> MetricBag:
    """Train on the batch of a failed step, on any trainer of that architecture and algorithm.

    Args:
        path: `failed-step-N.pt` of a run.
        trainer: the weights it holds decide whether the step fails again: those of the run's last
            checkpoint show whether the batch or the weights are at fault.

    Raises:
        TrainError: it does, with the same words if the weights are the same.
    """
    return trainer.step(load_failed_step(path).batch)
