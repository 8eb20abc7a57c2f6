"""Tensors as they are at one moment, written while training goes on.

    keep(live tensors) -> a thread takes one after the other ----------------> the file
                          settle(), before the first of them moves: copies what is not yet taken

Most of a step changes no weight: rollouts, forward and backward passes. What the thread has taken
by then was never copied as a whole, and what is left is copied once, so main memory holds at most
one copy of this rank's part, and nothing waits for the disk.
"""

from __future__ import annotations

import threading

from torch import Tensor

from agentrl.models.files.tensor_file import WrittenTensor


class StateSnapshot:
    """Tensors of one save. Thread-safe: one thread writes, another one trains."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}
        self._count = 0

    def keep(self, name: str, tensor: Tensor, *, copied: bool = False) -> WrittenTensor:
        """Hold a tensor as it is now.

        Args:
            name: in the file.
            tensor: may change after `settle`.
            copied: nobody else changes it: it is never copied again.
        """
        number, self._count = self._count, self._count + 1
        (self._own if copied else self._live)[number] = tensor.detach()
        return WrittenTensor(
            name=name,
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            take=lambda: self._take(number),
        )

    def _take(self, number: int) -> Tensor:
        with self._lock:
            own = self._own.pop(number, None)
            return self._live.pop(number).to("cpu", copy=True) if own is None else own

    def settle(self) -> None:
        """Copy what is not yet taken; afterwards the tensors may change."""
        with self._lock:
            while self._live:
                number, tensor = self._live.popitem()
                self._own[number] = tensor.to("cpu", copy=True)

    def drop(self) -> None:
        """Forget everything, once it is written or will never be."""
        with self._lock:
            self._live.clear()
            self._own.clear()
