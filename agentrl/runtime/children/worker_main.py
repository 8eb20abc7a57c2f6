"""The main function of a rollout worker in a child process.

A request is a frame with `id` and `method` and the pickled arguments; the reply has the same `id`
and the pickled result, or `error` and the pickled exception. Many requests are under way at once.
Only parent and child, one program on one machine, write into their channel.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.plan import RolloutPlan
from agentrl.disk.logs import log_to, quiet_libraries
from agentrl.machine.processes.child_main import ChildChannel, Frame
from agentrl.plugins.leaving import ends_alone
from agentrl.runtime.assembly.engine_addresses import EngineAddress
from agentrl.runtime.assembly.rollout_host import HostReport, PolicyCopy, RolloutHost
from agentrl.runtime.children.packed_group import PROTOCOL, PackedGroup
from agentrl.types import SamplingParams, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Arguments of a rollout worker in a child process."""

    plan: RolloutPlan
    """Of a rollout; `model.path` names the tokenizer's folder."""
    wait_s: float
    """As `RolloutHost` takes it."""
    index: int
    """Number among the workers of the run."""
    sharers: int
    """Workers of the run."""
    log: Path
    """File that takes log records."""
    policy_copy: PolicyCopy | None
    """By `copy_policy`."""


def serve(channel: ChildChannel) -> None:
    """Serve as a rollout worker until the parent sends `close`, or ends."""
    channel.end_with_parent()
    setup: WorkerSetup = pickle.loads(channel.receive().body)
    quiet_libraries()
    with log_to(setup.log):
        asyncio.run(ends_alone(_WorkerServer(channel, setup).run()))


class _WorkerServer:
    """Answers the requests of one parent."""

    def __init__(self, channel: ChildChannel, setup: WorkerSetup) -> None:
        self._channel, self._policy_copy = channel, setup.policy_copy
        self._host = RolloutHost(
            setup.plan, wait_s=setup.wait_s, index=setup.index, sharers=setup.sharers
        )
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer until `close` is asked, which is answered last."""
        while True:
            asked = await asyncio.to_thread(self._channel.receive)
            if asked.head["method"] == "close":
                await self._answer(asked)
                return
            task = asyncio.create_task(self._answer(asked))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def open(self, engines: Sequence[EngineAddress]) -> tuple[int, HostReport]:
        """Open the worker; returns its process id, too."""
        return os.getpid(), await self._host.open(engines, self._policy_copy)

    async def run_group(
        self, task: Task, group_id: str, n: int, sampling: SamplingParams, seed: int
    ) -> PackedGroup:
        """Run a group and pack it."""
        report, group = await self._host.run_group(task, group_id, n, sampling, seed)
        return PackedGroup.of(report, group)

    async def _answer(self, asked: Frame) -> None:
        name, error = asked.head["method"], False
        method = getattr(self, name, None) or getattr(self._host, name)
        try:
            result: Any = await method(*pickle.loads(asked.body))
        except asyncio.CancelledError:
            result, error = None, True  # a group that `cancel` ended; nothing awaits it
        except Exception as caught:  # recording boundary: the parent raises it
            logger.info("%s failed", name, exc_info=True)
            result, error = _portable(caught), True
        head = {"id": asked.head["id"], "error": error}
        # A large frame fills the socket's buffer, and the parent may be busy: not on the loop.
        await asyncio.to_thread(self._channel.send, head, pickle.dumps(result, PROTOCOL))


def _portable(error: Exception) -> Exception:
    """The exception if it can be read in another process, else its text.

    The parent may not have imported what a user's file defines, so only our exceptions and
    Python's own go through as they are.
    """
    try:
        if type(error).__module__.partition(".")[0] not in ("agentrl", "builtins"):
            raise TypeError("a class of the user")
        pickle.loads(pickle.dumps(error, PROTOCOL))
    except Exception:  # the class of a user's exception may do anything when it is made again
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
