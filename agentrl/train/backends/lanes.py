"""Micro-batches side by side, in threads that do not wait for each other.

A pass over a small model is made of short operations. Where all threads work on each of them, they
meet at a barrier after each, and where another process has one of the cores every barrier waits for
it. A thread for each micro-batch meets nobody: it takes the cores it gets.

Which lane computes which micro-batch, and in which order their gradients are added, follows from
the micro-batches alone, so that the same batch gives the same bits.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from agentrl.batch.records import MicroBatch
from agentrl.compute_threads import compute_thread, usable_cores
from agentrl.train.backends.shares import least_loaded

Model = TypeVar("Model")
Result = TypeVar("Result")

MOST_LANES = 4
"""More threads than this wait for memory rather than for each other."""
LANE_BYTES = 1 << 31
"""Float32 sums of gradients that the lanes beside the first may take by default (2 GiB)."""


def lane_count(model: Any, asked: int | None, *, ranks: int = 1) -> int:
    """The lanes of a model; those of a policy and its reference are equal, so their bits are, too.

    Args:
        model: on its device; a GPU has one lane.
        asked: `train.backend.lanes`.
        ranks: that train together; several have one lane each, unless more are asked for.
    """
    if next(model.parameters()).device.type != "cpu":
        return 1
    if asked is not None or ranks > 1:
        return asked or 1
    return default_lanes(usable_cores(), sum(param.numel() for param in model.parameters()))


def default_lanes(cores: int, parameters: int) -> int:
    """One lane a core up to `MOST_LANES`, as long as their gradients stay within `LANE_BYTES`.

    Args:
        cores: that the process may compute on.
        parameters: of the model; each lane but the first holds 4 bytes for each that is trained.
    """
    affordable = 1 + LANE_BYTES // max(1, 4 * parameters)
    return max(1, min(cores, MOST_LANES, affordable))


def sharing_copy(model: Any) -> Any:
    """A copy of a model that shares its weights and configuration, and has gradients of its own."""
    shared: dict[int, Any] = {
        id(param): nn.Parameter(param.data, requires_grad=param.requires_grad)
        for param in model.parameters()
    }
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None:
            # The attention that packed rows need is switched on there.
            shared[id(config)] = config
    return copy.deepcopy(model, shared)


def in_lanes(
    models: Sequence[Model],
    micro_batches: Sequence[MicroBatch],
    work: Callable[[Model, MicroBatch], Result],
) -> list[Result]:
    """Call `work` for every micro-batch; one model serves one micro-batch at a time.

    Args:
        models: one for each lane. Several have equal shares of the cores, a single one is called
            in the caller's thread.
        micro_batches: given to the lanes so that each has about equally many tokens.
        work: called in the threads of the lanes, with gradients on or off as they are here.

    Returns:
        One result for each micro-batch, in their order.

    Raises:
        Exception: a failure of `work`; all lanes have ended.
    """
    if len(models) == 1:
        return [work(models[0], micro) for micro in micro_batches]
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}
    stop, grad_on = threading.Event(), torch.is_grad_enabled()

    def run(model: Model, members: Sequence[int]) -> None:
        with torch.set_grad_enabled(grad_on):
            for index in members:
                if stop.is_set():
                    return
                try:
                    results[index] = work(model, micro_batches[index])
                except BaseException as error:  # raised again below, in the caller's thread
                    failures[index] = error
                    stop.set()

    cores = max(1, usable_cores() // len(models))
    shares = least_loaded([micro.num_tokens for micro in micro_batches], len(models))
    threads = [
        compute_thread(lambda m=model, s=members: run(m, s), name=f"train-{lane}", cores=cores)
        for lane, (model, members) in enumerate(zip(models, shares, strict=True))
        if members
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[min(failures)]
    return [results[index] for index in range(len(micro_batches))]
