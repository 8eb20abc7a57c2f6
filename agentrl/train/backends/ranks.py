"""The processes that train one model together, and the messages between them.

A group of its own rather than torch's global one: the process of a trainer rank may be in other
groups as well, such as the one that moves weights to the engines. Libraries that know the global
group only get one with the same ranks (`open_global_group`). Objects travel over gloo on the CPU,
tensors over gloo or, from GPU to GPU, over NCCL. Peers are trusted: objects are pickled.

Invariants: all ranks make the same calls in the same order; every call has a time limit; after an
error the group is of no use any more, and its ranks meet again at a new meeting.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (
    AllreduceOptions,
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
    ReduceOp,
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from agentrl.errors import ConfigError, RanksParted, TrainError
from agentrl.machine.nccl import make_nccl_group

COLLECTIVE_TIMEOUT_S = 1800.0
"""A rank waits this long for the slowest: longer than the forward and backward of an update."""

_BUCKET_BYTES = 1 << 26


class Meeting:
    """The meeting point of the ranks of one group: a key-value store on a free port.

    The process that starts the ranks holds it until they have left; a new group needs a new one.
    """

    def __init__(self, *, host: str = "127.0.0.1", join_timeout_s: float = 120.0) -> None:
        """Listen.

        Args:
            host: name or address of this machine as the ranks reach it.
            join_timeout_s: limit of each wait on the store.
        """
        # A store that opens its port itself listens at every address of this machine.
        family, *_, address_info = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address_info[:2], family=family)
        self._store: TCPStore | None = TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=join_timeout_s),
            master_listen_fd=listener.detach(),
        )
        self.address = f"{host}:{self._store.port}"
        """Address for the ranks, as `host:port`."""

    def close(self) -> None:
        """Stop listening on the port. Idempotent."""
        self._store = None


class Ranks:
    """Membership of one process in a group. Not thread-safe: one call at a time."""

    def __init__(
        self,
        address: str,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        join_timeout_s: float = 120.0,
        timeout_s: float = COLLECTIVE_TIMEOUT_S,
    ) -> None:
        """Join; returns when every rank has.

        Args:
            address: `Meeting.address`.
            rank: of this process, from 0.
            world_size: how many ranks there are.
            device: where the tensors are that will be summed.
            join_timeout_s: how long the others may take to come.
            timeout_s: how long a rank waits in one call for the slowest.

        Raises:
            RanksParted: no meeting listens at `address`, or not all ranks came in time.
        """
        if not 0 <= rank < world_size:
            raise TrainError(f"rank {rank} is not one of {world_size} ranks")
        self.rank, self.world_size = rank, world_size
        self._device, self._timeout_s, self._global = device, timeout_s, False
        self._before_close: list[Callable[[], None]] = []
        host, _, port = address.rpartition(":")
        limit = timedelta(seconds=join_timeout_s)
        with self.naming(f"meeting the others at {address} within {join_timeout_s:g} s"):
            store = TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=limit
            )
            self._objects: Any = _gloo(
                PrefixStore("objects", store), rank, world_size, join_timeout_s
            )
            self._objects._set_default_timeout(timedelta(seconds=timeout_s))
            self._tensors: Any = self._objects
            if device.type == "cuda":
                self._tensors = make_nccl_group(
                    PrefixStore("tensors", store), rank=rank, size=world_size, timeout_s=timeout_s
                )
        self._store: Store | None = store

    @property
    def device(self) -> torch.device:
        """The device that holds this rank's tensors."""
        return self._device

    def open_global_group(self) -> None:
        """Make these ranks torch's global group, for libraries that ask for it; idempotent.

        Raises:
            TrainError: this process is in another global group, or a rank did not come.
        """
        if self._global:
            return
        if torch.distributed.is_initialized():
            raise TrainError(
                "torch's global process group is taken in this process; a sharded backend needs it"
            )
        assert self._store is not None, "the group is closed"
        with self.naming("opening torch's global process group"):
            torch.distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo",
                store=PrefixStore("global", self._store),
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self._timeout_s),
            )
        self._global = True

    def gather(self, value: Any) -> list[Any]:
        """One picklable value of every rank, in the order of the ranks.

        Raises:
            RanksParted: a rank is gone, or did not come in time.
        """
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        with self.naming("gathering what every rank has to say"):
            sizes = [size.item() for size in self._all_gather(torch.tensor([len(own)]))]
            padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
            padded[: len(own)] = own
            parts = self._all_gather(padded)
        return [
            pickle.loads(part[: int(size)].numpy().tobytes())
            for part, size in zip(parts, sizes, strict=True)
        ]

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Add up tensors over all ranks, which all pass the same shapes in the same order.

        Every rank gets the same bits. Sums are formed in the dtype of the tensors.

        Raises:
            RanksParted: a rank is gone, or did not come in time.
        """
        with self.naming("summing gradients"):
            for bucket in _buckets(tensors):
                if len(bucket) == 1 and bucket[0].is_contiguous():
                    self._all_reduce(bucket[0])
                    continue
                flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
                self._all_reduce(flat)
                sizes = [tensor.numel() for tensor in bucket]
                for tensor, part in zip(bucket, flat.split(sizes), strict=True):
                    tensor.copy_(part.view_as(tensor))

    def before_close(self, call: Callable[[], None]) -> None:
        """Have something done before the groups go."""
        self._before_close.append(call)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        while self._before_close:
            self._before_close.pop()()
        for group in {id(group): group for group in (self._tensors, self._objects)}.values():
            if group is not None:
                group.shutdown()
        self._tensors = self._objects = None
        if self._global and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._global, self._store = False, None

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        self._objects.allgather([parts], [tensor]).wait()
        return parts

    def _all_reduce(self, tensor: Tensor) -> None:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM  # pyright: ignore[reportAttributeAccessIssue]
        self._tensors.allreduce([tensor], options).wait()

    @contextmanager
    def naming(self, what: str) -> Iterator[None]:
        """Name who was doing what when the library below gave up."""
        try:
            yield
        except (torch.OutOfMemoryError, ConfigError):
            raise  # a RuntimeError and a ValueError, too, and of this rank alone
        except (RuntimeError, ValueError) as error:
            raise RanksParted(
                f"rank {self.rank} of {self.world_size} failed while {what}; a rank that ended, "
                f"hangs or was never started is the usual cause: {error}"
            ) from error


def _gloo(store: Store, rank: int, world_size: int, timeout_s: float) -> Any:
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_s))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype, together at most `_BUCKET_BYTES`, or one larger tensor alone."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if bucket and (size + more > _BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += more
    if bucket:
        yield bucket
