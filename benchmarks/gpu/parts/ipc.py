"""Weights from one process to another: CUDA handles on a GPU, shared memory on the CPU.

The receiver copies what it gets into tensors of its own, as an engine does while it loads, and
sends their sums back; the sums of a copy in the first process must be the same bits.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from agentrl.sync.choose import make_receiver
from agentrl.sync.ipc import IpcSender, device_digest
from agentrl.sync.shm.shm import ShmSender
from agentrl.sync.transfer import WeightSender
from parts.models import make_model
from parts.readings import Reading, Setting, seconds_of, synchronize

WAIT_S = 120.0


class PeerFailed(Exception):
    """The receiving process raised; the message is its traceback."""


def receive(backend: str, device: str, pipe: Connection) -> None:
    """Serve orders until None comes: `("connect", info)`, or `("receive", ticket)`.

    The answer to a ticket is the seconds of the whole, and a digest of every copy by name.
    """
    try:
        place = torch.device(device)
        receiver = make_receiver(backend)
        copies: dict[str, Tensor] = {}
        while (order := pipe.recv()) is not None:
            what, value = order
            if what == "connect":
                receiver.connect(value)
                pipe.send(("done", None))
                continue
            synchronize(place)
            began = time.perf_counter()
            for name, tensor in receiver.receive(value):
                if name in copies:
                    copies[name].copy_(tensor)
                else:
                    copies[name] = tensor.to(place, copy=True)
            synchronize(place)
            seconds = time.perf_counter() - began
            pipe.send(("done", (seconds, {n: device_digest(t) for n, t in copies.items()})))
        receiver.close()
    except Exception:  # the boundary of the process: the other side shows it
        pipe.send(("failed", traceback.format_exc()))


class Peer:
    """A process that receives weights."""

    def __init__(self, backend: str, device: torch.device) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=receive, args=(backend, str(device), theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, what: str, value: Any) -> Any:
        """Give an order and wait for its answer.

        Raises:
            PeerFailed: the process raised, ended, or did not answer in time.
        """
        self._pipe.send((what, value))
        try:
            if not self._pipe.poll(WAIT_S):
                raise PeerFailed(f"no answer to {what!r} within {WAIT_S:g} s")
            state, answer = self._pipe.recv()
        except EOFError:
            raise PeerFailed(f"the receiver ended during {what!r}") from None
        if state == "failed":
            raise PeerFailed(answer)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process.is_alive():
            with contextlib.suppress(OSError):  # it ended while it was asked
                self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def make_sender(device: torch.device) -> WeightSender:
    """CUDA IPC on a GPU, shared memory elsewhere."""
    return IpcSender() if device.type == "cuda" else ShmSender()


def send_versions(
    weights: dict[str, Tensor], device: torch.device, *, versions: int
) -> tuple[int, list[float], list[float]]:
    """Change the weights and send them, `versions` times.

    Returns:
        Tensors that arrived with other bits, over all versions; seconds of each send; seconds of
        each receipt with its copy.
    """
    sender = make_sender(device)
    peer = Peer(sender.backend, device)
    wrong, sent, received = 0, [], []
    try:
        (info,) = sender.connect(1)
        peer.ask("connect", info)
        for version in range(1, versions + 1):
            with torch.no_grad():
                for tensor in weights.values():
                    tensor.add_(tensor, alpha=2.0**-6)
            synchronize(device)
            began = time.perf_counter()
            ticket = sender.send(weights.items(), version)
            sent.append(time.perf_counter() - began)
            seconds, digests = peer.ask("receive", ticket)
            received.append(seconds)
            wrong += sum(digests[name] != device_digest(t) for name, t in weights.items())
    finally:
        peer.close()
        sender.close()
    return wrong, sent, received


def measure(setting: Setting) -> Iterator[Reading]:
    """Bits that differ, and the rates of the transfer and of a copy inside one process."""
    model = make_model(setting, torch.bfloat16)
    weights = {name: param.detach() for name, param in model.named_parameters()}
    size = sum(tensor.nbytes for tensor in weights.values())
    wrong, sent, received = send_versions(weights, setting.device, versions=6)
    yield Reading(name="tensors that arrived with other bits", value=wrong, bound=0)
    yield Reading(name="weights", value=size / 2**20, unit="MiB")
    yield Reading(name="first receive", value=received[0] * 1e3, unit="ms")
    targets = {name: torch.empty_like(tensor) for name, tensor in weights.items()}

    def copy() -> None:
        for name, tensor in weights.items():
            targets[name].copy_(tensor)

    # The first version opens every handle and allocates.
    times = {
        "send: handles and digests": statistics.median(sent[1:]),
        "receive: open, check, copy": statistics.median(received[1:]),
        "copy inside one process": seconds_of(copy, setting.device),
    }
    for name, seconds in times.items():
        yield Reading(name=name, value=seconds * 1e3, unit="ms")
        yield Reading(name=name, value=size / seconds / 1e9, unit="GB/s")
