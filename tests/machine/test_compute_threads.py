"""Threads that compute: what they may use of the machine."""

from __future__ import annotations

import os
import sys
import threading

import pytest
import torch

from agentrl.machine.compute_threads import run_beside, run_computing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority there")


def seen() -> tuple[int, int]:
    """Niceness of this thread, and the cores that torch gives it."""
    priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    return priority, torch.get_num_threads()


async def test_what_runs_beside_takes_one_core_and_what_is_left_of_it() -> None:
    """Fails if a writer of checkpoints has a team of all cores, or makes the others nicer, too."""
    own, _ = seen()
    niceness, cores = await run_beside(seen)
    assert (niceness, cores) == (max(own, 10), 1)
    assert seen()[0] == (await run_computing(seen))[0] == own


async def test_an_error_beside_is_that_of_whoever_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        await run_beside(lambda: 1 // 0)
