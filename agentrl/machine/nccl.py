"""NCCL groups whose limits hold in this process, as those of gloo do.

By default `wait` of NCCL returns at once, and a member that is gone is found by a thread of torch
that ends the whole process. With blocking waits a limit or an error is an exception where it is
waited for, and the caller can name it, leave the group and go on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_environment = threading.Lock()
"""Held while the variable is ours: two threads would put back each other's value."""


def make_nccl_group(store: Store, *, rank: int, size: int, timeout_s: float) -> Any:
    """Meet the other members, and return a group whose waits raise `RuntimeError`.

    Args:
        store: where they meet; its keys are this group's alone.
        rank: of this process, from 0.
        size: of the group.
        timeout_s: longest wait for one operation.
    """
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    with blocking_waits():
        return ProcessGroupNCCL(store, rank, size, options)


@contextmanager
def blocking_waits() -> Iterator[None]:
    """Inside the block, torch makes groups with blocking waits; it asks the environment once.

    One thread at a time is in the block.
    """
    with _environment:
        before = os.environ.get(_BLOCKING)
        os.environ[_BLOCKING] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_BLOCKING]
            else:
                os.environ[_BLOCKING] = before
