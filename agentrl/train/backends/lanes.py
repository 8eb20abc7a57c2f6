"""Micro-batches side by side, in threads that do not wait for each other.

A pass over a small model is made of short operations. Where all threads work on each of them, they
meet at a barrier after each, and where another process has one of the cores every barrier waits for
it. A thread for each micro-batch meets nobody: it takes the cores it gets.

Which lane computes which micro-batch, and in which order their gradients are added, follows from
the micro-batches alone, so that the same batch gives the same bits.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from agentrl.batch.records import MicroBatch
from agentrl.machine.compute_threads import compute_thread, usable_cores
from agentrl.models.logit_map import body_of
from agentrl.models.rotary import rotary_limit
from agentrl.train.backends.shares import least_loaded

logger = logging.getLogger(__name__)

Model = TypeVar("Model")
Result = TypeVar("Result")

MOST_LANES = 4
"""More threads than this wait for memory rather than for each other."""
LANE_BYTES = 1 << 31
"""Bound on the gradients of the lanes beside the first, by default (2 GiB)."""


def lane_count(model: Any, asked: int | None, *, ranks: int = 1) -> int:
    """The lanes of a model; those of a policy and its reference are equal, so their bits are, too.

    Args:
        model: on its device. A GPU has one lane, and so has a model whose position embeddings
            depend on the longest row it has read: rows of one lane must not change another's.
        asked: `train.backend.lanes`; None is `default_lanes`.
        ranks: that train together; several have one lane each, unless more are asked for.

    Returns:
        A number of at least 1.
    """
    why = ""
    if next(model.parameters()).device.type != "cpu":
        why = "the model is not on a CPU"
    elif _reads_length(model):
        why = "its rotary embedding depends on the length of what it reads"
    if why:
        if asked is not None and asked > 1:
            logger.warning("train.backend.lanes is %d, but there is one lane: %s", asked, why)
        return 1
    if asked is not None or ranks > 1:
        return asked or 1
    return default_lanes(usable_cores(), sum(param.numel() for param in model.parameters()))


def default_lanes(cores: int, parameters: int) -> int:
    """At most `MOST_LANES` within `LANE_BYTES`; of two and more the number that uses most cores.

    Args:
        cores: that the process may compute on; each lane has the same number of them.
        parameters: of the model, all of them taken for trained: each lane but the first holds 4
            bytes for every one that is.

    Returns:
        A number of at least 1; among equals the largest.
    """
    affordable = 1 + LANE_BYTES // max(1, 4 * parameters)
    most = max(1, min(cores, MOST_LANES, affordable))
    return max(range(min(2, most), most + 1), key=lambda n: (n * (cores // n), n))


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
        for value in vars(module).values():
            # The state that a pass has left (RecurrentGemma), which cannot be copied.
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                shared[id(value)] = value.detach()
    return copy.deepcopy(model, shared)


def in_lanes(
    models: Sequence[Model],
    micro_batches: Sequence[MicroBatch],
    work: Callable[[Model, MicroBatch], Result],
    *,
    cores: int,
) -> list[Result]:
    """Call `work` for every micro-batch; one model serves one micro-batch at a time.

    Args:
        models: one for each lane; a single one is called in the caller's thread.
        micro_batches: given to the lanes so that each has about equally many tokens.
        work: called in the threads of the lanes, with gradients on or off as they are here.
        cores: that several lanes have together, in equal shares.

    Returns:
        One result for each micro-batch, in their order.

    Raises:
        Exception: the failure of the first micro-batch, in their order, that failed; all lanes
            have ended.
    """
    if len(models) == 1:
        return [work(models[0], micro) for micro in micro_batches]
    results: dict[int, Result] = {}
    failures = _Failures()
    grad_on = torch.is_grad_enabled()
    # Until then an interrupt may leave a thread that is not among those to be waited for.
    all_started = threading.Event()

    def run(model: Model, members: Sequence[int], ended: threading.Event) -> None:
        try:
            all_started.wait()
            with torch.set_grad_enabled(grad_on):
                for index in members:
                    if failures.first() < index:
                        return
                    try:
                        results[index] = work(model, micro_batches[index])
                    except BaseException as error:  # raised again below, in the caller's thread
                        failures.add(index, error)
        finally:
            ended.set()

    shares = least_loaded([micro.num_tokens for micro in micro_batches], len(models))
    each = max(1, cores // len(models))
    started: list[tuple[threading.Thread, threading.Event]] = []
    try:
        for lane, (model, members) in enumerate(zip(models, shares, strict=True)):
            if members:
                ended = threading.Event()
                target = functools.partial(run, model, members, ended)
                thread = compute_thread(target, name=f"train-{lane}", cores=each)
                thread.start()
                started.append((thread, ended))
        all_started.set()
        _wait(started)
    except BaseException as error:
        # An interrupt of a caller in the main thread, for one: nothing may go on computing over
        # weights that others change.
        failures.add(-1, error)
        all_started.set()
        _wait(started)
        raise
    failures.raise_first()
    return [results[index] for index in range(len(micro_batches))]


def _wait(started: Sequence[tuple[threading.Thread, threading.Event]]) -> None:
    # Not `Thread.join`: interrupted, it takes a running thread for ended (until Python 3.13).
    for thread, ended in started:
        while not ended.wait(1.0) and thread.is_alive():
            continue


class _Failures:
    """Errors by index, added in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[int, BaseException] = {}

    def add(self, index: int, error: BaseException) -> None:
        with self._lock:
            self._errors[index] = error

    def first(self) -> float:
        """The lowest index; infinite while there is none."""
        with self._lock:
            return min(self._errors, default=math.inf)

    def raise_first(self) -> None:
        """Raise that of the lowest index; keep none, since each holds what its lane computed."""
        errors, self._errors = self._errors, {}
        if errors:
            raise errors[min(errors)]


def _reads_length(model: Any) -> bool:
    """True if the position embeddings of a model depend on the longest row it has read."""
    body = body_of(model)
    return hasattr(body, "config") and rotary_limit(body.config) is not None
