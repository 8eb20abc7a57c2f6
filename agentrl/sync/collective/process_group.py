"""A process group of the trainer's rank 0 and every engine, beside whatever groups they have.

Made from a store and a backend object of its own, so it neither needs nor touches the default group
of `torch.distributed`, which the trainer may use for its gradients.
"""

from __future__ import annotations

import contextlib
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined] - a re-export

from agentrl.errors import SyncError
from agentrl.machine.nccl import make_nccl_group
from agentrl.sync.transfer import MemberLost


class Group:
    """The members of one fleet, until it changes.

    Kind `gloo` is for tests and comparisons without GPUs.
    """

    def __init__(
        self,
        store: TCPStore,
        *,
        rank: int,
        size: int,
        kind: str,
        address: str,
        timeout_s: float,
    ) -> None:
        """Meet the others.

        Args:
            store: where they meet.
            rank: 0 sends.
            size: of the group, the sender included.
            kind: `gloo` or `nccl`.
            address: of this member's own host, as the others reach it.
            timeout_s: for the meeting and for every broadcast.

        Raises:
            SyncError: they did not come in time.
        """
        self.rank = rank
        self._flights: deque[Any] = deque()
        self._timeout_s = timeout_s
        limit = timedelta(seconds=timeout_s)
        self.device = torch.device("cpu")
        try:
            if kind == "gloo":
                options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined] - the only ones
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
                options._timeout = limit
                self._group: Any = dist.ProcessGroupGloo(store, rank, size, options)
            else:
                self.device = torch.device("cuda", torch.cuda.current_device())
                self._group = make_nccl_group(store, rank=rank, size=size, timeout_s=timeout_s)
        except (RuntimeError, ValueError) as error:
            raise MemberLost(
                f"rank {rank} of {size} did not meet the others within {timeout_s:g} s: {error}"
            ) from error

    def make_buffers(self, size: int) -> list[Tensor]:
        """Two, where the group moves them."""
        return [torch.empty(size, dtype=torch.uint8, device=self.device) for _ in range(2)]

    def broadcast(self, tensor: Tensor) -> None:
        """Begin to move a tensor from rank 0 to all others.

        All members must name the same size: gloo ends the process of one that expects another.
        """
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        try:
            self._flights.append(self._group.broadcast([tensor], options))
        except RuntimeError as error:
            raise SyncError(f"broadcast failed on rank {self.rank}: {error}") from error

    def wait(self) -> None:
        """Wait until the oldest broadcast has ended.

        Raises:
            SyncError: a member is gone, or too slow.
        """
        try:
            self._flights.popleft().wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise MemberLost(
                f"a member of the weight group failed, seen by rank {self.rank}: {error}"
            ) from error

    def close(self) -> None:
        """Leave: the others are notified at once instead of by timeout. Idempotent.

        gloo closes its connections when nothing refers to the group, and a broadcast that has
        begun does; so those are awaited first, and no other code may hold one.
        """
        while self._flights:
            with contextlib.suppress(SyncError):
                self.wait()
        self._group = None
