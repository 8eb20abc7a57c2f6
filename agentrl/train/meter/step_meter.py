"""The speed of a training step, from its operations, its time and what its device could do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from agentrl.batch.records import PackedBatch
from agentrl.metrics.bag import MetricBag
from agentrl.train.meter.device import DeviceMeter
from agentrl.train.meter.flops import ModelFlops

_OPERATIONS = "perf/tflop"


class StepMeter:
    """Measures the steps of one rank."""

    def __init__(self, models: Iterable[Any]) -> None:
        """Count the weights of the models.

        Args:
            models: the policy first, then a critic that learns on the same rows; of one that
                only its backend knows, and which is None here, no operations are counted.
        """
        models = tuple(models)
        self._flops = [None if model is None else ModelFlops.of(model) for model in models]
        weight = torch.empty(0) if models[0] is None else next(models[0].parameters())
        self._dtype = weight.dtype
        self._device = DeviceMeter(weight.device)

    def begin(self, bag: MetricBag) -> None:
        """Begin a step; what the process did since the last one goes into `bag`."""
        self._device.take("rest", bag)

    def end(self, shares: Iterable[PackedBatch], bag: MetricBag) -> None:
        """End it; the numbers of this rank go into `bag`, to be merged with those of the others.

        Args:
            shares: the micro-batches that this rank has trained.
            bag: takes them.
        """
        self._device.take("train", bag)
        updates = tuple(shares)
        pictures = any(micro.images for update in updates for micro in update.micro_batches)
        known = [flops for flops in self._flops if flops is not None]
        if len(known) == len(self._flops) and not pictures:
            total = sum(flops.of_update(update) for flops in known for update in updates)
            bag.sum(_OPERATIONS, total / 1e12)

    def note_speed(self, merged: MetricBag, *, tokens: int, seconds: float, ranks: int) -> None:
        """Add what follows from the sums over the ranks.

        Args:
            merged: holds what `end` gave on every rank; takes the speeds.
            tokens: that all ranks have read.
            seconds: of the step.
            ranks: number of them, each with a device of its own.
        """
        merged.mean("train/tokens_per_second", tokens, count=seconds)
        merged.mean("perf/train_tokens_per_second_per_device", tokens, count=seconds * ranks)
        operations = merged.result().get(_OPERATIONS)
        if operations is None:
            return
        merged.mean("perf/tflops_per_device", operations, count=seconds * ranks)
        peak = self._device.peak_flops(self._dtype)
        if peak is not None:
            merged.mean("perf/mfu", operations, count=seconds * ranks * peak / 1e12)
