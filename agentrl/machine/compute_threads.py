"""Threads that compute, and the teams of OpenMP threads they get.

torch's OpenMP runtime gives every Python thread that computes a team of its own, and once the
teams together have more threads than the machine has cores, it lets them sleep at every barrier
instead of spinning. Measured on two cores, that costs a quarter of a training step and more of
a decoding step, although only one team works at any time. So computing happens in threads that
live no longer than their work (their team goes with them), and the thread of the event loop, which
never ends, has no team.

A team whose machine is shared waits at every barrier for the one thread that another process has
displaced, and spins while it waits, which displaces others. Beside one busy process on two cores a
pass of training then takes 2.6 times as long where 1.5 would be fair, and a decoding step 6 times.
So teams sleep at barriers (`OMP_WAIT_POLICY`): a plain pass takes 1.6 times beside others, and 5 %
more time alone. Where there is work for several threads of one core each, they meet at no barrier
at all: the lanes of the embedded engine and of the trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from agentrl.machine.allocator import share_one_heap

T = TypeVar("T")

_WAIT_POLICY = "OMP_WAIT_POLICY"
_BESIDE_NICENESS = 10
_cores: int | None = None


def reserve_cores() -> int:
    """Call once in the main thread before anything computes, and before torch is imported.

    Threads that start afterwards share one heap; see `agentrl.machine.allocator`.

    Where torch is imported already its threads spin at barriers as they did; `OMP_WAIT_POLICY` of
    the user wins.

    Returns:
        The number of threads torch would use; compute threads use them from now on, the calling
        thread uses one.
    """
    share_one_heap()
    with _sleeping_barriers():
        import torch

    global _cores
    if _cores is None:
        _cores = torch.get_num_threads()
        torch.set_num_threads(1)
    return _cores


@contextlib.contextmanager
def _sleeping_barriers() -> Iterator[None]:
    """OpenMP reads the variable when torch is imported; processes started later do not get it."""
    if _WAIT_POLICY in os.environ:
        yield
        return
    os.environ[_WAIT_POLICY] = "passive"
    try:
        yield
    finally:
        del os.environ[_WAIT_POLICY]


def usable_cores() -> int:
    """Cores that computing may use: those of `reserve_cores`, or what torch would use."""
    if _cores is not None:
        return _cores
    import torch

    return torch.get_num_threads()


def compute_thread(
    target: Callable[[], None], *, name: str, cores: int | None = None
) -> threading.Thread:
    """A thread, not started, that may use `cores` cores; None is all of them."""
    team = cores or _cores

    def run() -> None:
        if team is not None:
            import torch

            torch.set_num_threads(team)
        target()

    return threading.Thread(target=run, name=name, daemon=True)


async def run_computing(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As `asyncio.to_thread`, in a compute thread of its own that ends with the call."""
    return await _in_thread(functools.partial(function, *args, **kwargs), name=function)


async def run_beside(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As `run_computing`, for what others should not notice: one core, and what they leave of it.

    A team of all cores beside that of a training step would wait at barriers with it, and have it
    wait. Only Linux knows a priority of one thread.
    """

    def work() -> T:
        if sys.platform == "linux":
            thread = threading.get_native_id()
            lowest = max(_BESIDE_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, lowest)
        return function(*args, **kwargs)

    return await _in_thread(work, name=function, cores=1)


async def _in_thread(
    function: Callable[[], T], *, name: Callable[..., Any], cores: int | None = None
) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(outcome: Any, *, failed: bool) -> None:
        if not future.done():
            (future.set_exception if failed else future.set_result)(outcome)

    def work() -> None:
        try:
            outcome, failed = function(), False
        except BaseException as error:  # passed to the caller, any error
            outcome, failed = error, True
        loop.call_soon_threadsafe(functools.partial(resolve, outcome, failed=failed))

    title = f"compute-{getattr(name, '__name__', 'call')}"
    compute_thread(work, name=title, cores=cores).start()
    return await future
