"""The rollout workers of a run, and the replacements of those that died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.errors import RunError
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.runtime.assembly.engine_addresses import EngineAddress, until_served
from agentrl.runtime.assembly.rollout_host import PolicyCopy
from agentrl.runtime.ray.worker_group import ActorLost, WorkerGroup, ask

logger = logging.getLogger(__name__)

RESTARTS = 5
"""Times one worker is replaced; a worker that dies more often does not die by accident."""
BACK_OFF_S = 0.5
"""Seconds before the first of them; doubles each time."""


class Workers:
    """The group of workers, with a new actor for each that dies. Its tasks end with `close`."""

    engines: Callable[[], Sequence[EngineAddress]]
    """The engines that serve at this moment; set before a worker can die."""
    held: Callable[[], bool]
    """Whether the clocks of turns stand still at this moment; set likewise."""
    policy_copy: PolicyCopy | None = None
    """For workers that are opened; set before a worker can die."""

    def __init__(
        self,
        group: WorkerGroup,
        start: Callable[[int], Any],
        *,
        open_limit_s: float,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        """Keep the workers and the way to open a new one.

        Args:
            group: of `RolloutActor`s.
            start: makes a new actor for an index.
            open_limit_s: seconds a new worker may take to open, and wait for an engine before.
            back_off_s: seconds before the first restart, and between two looks for an engine.
        """
        self.group = group
        """The workers that live."""
        self._start = start
        self._open_limit_s = open_limit_s
        self._back_off_s = back_off_s
        self._restarts = [0] * len(group)
        self._lost = 0
        self._used: UsedRewardModel | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def lost(self, index: int) -> bool:
        """Note that a worker died, and start another in its place; True if it was not known yet."""
        if index not in self.group.usable:
            return False
        self._lost += 1
        self.group.retire(index)
        task = asyncio.create_task(self._replace(index))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def use_reward_model(self, used: UsedRewardModel) -> None:
        """`use_reward_model` as in `RewardModelUsers.use_reward_model`; also workers that open."""
        self._used = used
        calls = [self.group.one(i, "use_reward_model", used) for i in self.group.usable]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, ActorLost):
                logger.warning("reward model: %s", result)
            elif isinstance(result, BaseException):
                raise result

    def take_lost(self) -> int:
        """Workers that died since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    async def usable(self) -> None:
        """Return once a worker takes groups.

        Raises:
            RunError: none is left, and none will come.
        """
        while not self.group.usable:
            if not self._tasks:
                raise RunError(
                    f"all {len(self.group)} rollout workers died, each more than {RESTARTS} times; "
                    "look into logs/worker-*.log of the run, and at the memory of the machines; "
                    "then go on with --resume"
                )
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop replacing workers that die."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _replace(self, index: int) -> None:
        while self._restarts[index] < RESTARTS:
            await asyncio.sleep(self._back_off_s * 2 ** self._restarts[index])
            await until_served(self.engines, limit_s=self._open_limit_s, look_s=self._back_off_s)
            self._restarts[index] += 1
            try:
                handle = self._start(index)
                async with asyncio.timeout(self._open_limit_s):
                    engines, held = self.engines(), False
                    used: UsedRewardModel | None = None
                    await ask(handle, "open", engines, self.policy_copy, who=f"worker {index}")
                    while (engines, held, used) != (
                        now := (self.engines(), self.held(), self._used)
                    ):
                        if used != now[2]:
                            await ask(handle, "use_reward_model", now[2], who=f"worker {index}")
                        engines, held, used = now
                        await ask(handle, "serve_from", engines, who=f"worker {index}")
                        await ask(handle, "hold_turns", held, who=f"worker {index}")
            except Exception as error:  # recording boundary: sandboxes may be a user's
                logger.warning("worker %d could not be started again: %r", index, error)
                continue
            # No await since they were compared: from here on it gets every change.
            self.group.replace(index, handle)
            logger.warning("worker %d was started again", index)
            return
        logger.error("worker %d died more than %d times and stays out", index, RESTARTS)
