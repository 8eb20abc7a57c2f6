"""The rollout workers of a local run: which child runs a group, and who replaces one that died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.errors import RunError
from agentrl.fit.reward_models.versions import UsedRewardModel
from agentrl.runtime.assembly.engine_addresses import EngineAddress, until_served
from agentrl.runtime.assembly.rollout_host import HostReport
from agentrl.runtime.children.worker_child import WorkerChild, WorkerLost
from agentrl.runtime.children.worker_main import WorkerSetup

logger = logging.getLogger(__name__)

RESTARTS = 5
"""Times one worker is replaced; a worker that dies more often does not die by accident."""
BACK_OFF_S = 0.5
"""Seconds before the first of them; doubles each time."""
HANG_S = 120.0
"""Seconds a worker has to answer a question that is no group, as `hang_timeout_s` on Ray."""


class ChildWorkers:
    """The children of a run that roll out. Its tasks and its children end with `close`."""

    def __init__(
        self,
        setups: Sequence[WorkerSetup],
        engines: Callable[[], Sequence[EngineAddress]],
        *,
        wait_s: float,
        open_limit_s: float,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        """Keep what children are made of; none is started yet.

        Args:
            setups: one for each worker.
            engines: the engines that serve at this moment.
            wait_s: seconds that a restart waits for an engine when none serves.
            open_limit_s: seconds that a worker may take to open.
            back_off_s: seconds before the first restart of a worker, and between two looks for an
                engine.
        """
        self._wait_s, self._open_limit_s, self._held = wait_s, open_limit_s, False
        self._setups, self._serving, self._back_off_s = setups, engines, back_off_s
        self._live: dict[int, WorkerChild] = {}
        self._restarts = [0] * len(setups)
        self._replacing: set[asyncio.Task[None]] = set()
        self._lost = 0
        self._used: UsedRewardModel | None = None

    async def open(self) -> HostReport:
        """Start all workers at once; returns the report of the first.

        Raises:
            AgentrlError: one cannot be opened; call `close`.
        """
        starting = [asyncio.create_task(self._start(setup)) for setup in self._setups]
        try:
            return (await asyncio.gather(*starting))[0]
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    def engines(self) -> tuple[EngineAddress, ...]:
        """Addresses of the engines that serve at this moment."""
        return tuple(self._serving())

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that live, in the order in which groups prefer them."""
        return [self._live[index].pid for index in sorted(self._live)]

    async def take(self) -> WorkerChild:
        """The worker with the fewest groups in flight, as soon as one lives; counts one more there.

        Raises:
            RunError: none is left, and none will come.
        """
        while not self._usable():
            if not self._replacing:
                raise RunError(
                    f"all {len(self._setups)} rollout workers died, each more than {RESTARTS} "
                    "times; look into logs/worker-*.log of the run, and at the memory of the "
                    "machine; then go on with --resume"
                )
            await asyncio.wait(self._replacing, return_when=asyncio.FIRST_COMPLETED)
        child = min(self._live.values(), key=lambda child: (child.in_flight, child.index))
        child.in_flight += 1
        return child

    def _usable(self) -> bool:
        """Whether a worker lives; those that died unnoticed are replaced."""
        for child in list(self._live.values()):
            if child.lost:
                self.note_lost(child)
        return bool(self._live)

    def note_lost(self, child: WorkerChild) -> None:
        """Replace a worker that died, once."""
        if self._live.get(child.index) is not child:
            return
        del self._live[child.index]
        self._lost += 1
        task = asyncio.create_task(self._replace(child))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    def take_lost(self) -> int:
        """Workers that died since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    async def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker; an error of one takes the position of its result."""
        calls = [self._ask(child, method, *arguments) for child in self._live.values()]
        return await asyncio.gather(*calls, return_exceptions=True)

    async def hold_turns(self, held: bool) -> None:
        """Stop the clocks of turns, also those of a worker that opens meanwhile; or go on."""
        self._held = held
        await self.ask_all("hold_turns", held)

    async def use_reward_model(self, used: UsedRewardModel) -> None:
        """`use_reward_model` as in `RewardModelUsers.use_reward_model`; also workers that open.

        A worker that dies of it is replaced by one that begins with this version.
        """
        self._used = used
        calls = [
            self._ask(child, "use_reward_model", used, limit_s=self._open_limit_s)
            for child in self._live.values()
        ]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, WorkerLost):
                logger.warning("reward model: %s", result)
            elif isinstance(result, BaseException):
                raise result

    async def _ask(
        self, child: WorkerChild, method: str, *arguments: Any, limit_s: float | None = None
    ) -> Any:
        """Call a method of a worker, which is replaced if it does not answer in time.

        The limit, `HANG_S` unless another is given, is two halves: if this process itself was
        stopped, the first ends in the same moment in which the answer can be read, and the second
        waits for it.
        """
        limit_s = limit_s or HANG_S
        asking = asyncio.ensure_future(child.ask(method, *arguments))
        try:
            for _ in range(2):
                await asyncio.wait({asking}, timeout=limit_s / 2)
                if asking.done():
                    return asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
        logger.warning(
            "worker %d did not answer %s within %g s and is replaced; something blocks its "
            "event loop, or the process is stopped: see logs/worker-%d.log of the run",
            child.index,
            method,
            limit_s,
            child.index,
        )
        self.note_lost(child)
        raise WorkerLost(f"worker {child.index} did not answer within {limit_s:g} s")

    async def close(self) -> None:
        """End every worker and every replacement."""
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        children, self._live = list(self._live.values()), {}
        await asyncio.gather(*(child.close() for child in children))

    async def _start(self, setup: WorkerSetup) -> HostReport:
        child = WorkerChild(setup)
        try:
            async with asyncio.timeout(self._open_limit_s):
                engines, held = self.engines(), False
                used: UsedRewardModel | None = None
                report = await child.open(engines)
                while (engines, held, used) != (now := (self.engines(), self._held, self._used)):
                    if used != now[2]:
                        await child.ask("use_reward_model", now[2])
                    engines, held, used = now
                    await child.ask("serve_from", engines)
                    await child.ask("hold_turns", held)
        except TimeoutError:
            await child.close()
            raise WorkerLost(
                f"worker {setup.index} was not open within {self._open_limit_s:g} s "
                f"(serving.start_timeout_s); see {setup.log}"
            ) from None
        except BaseException:
            await asyncio.shield(child.close())
            raise
        # No await since they were compared: from here on it gets every change.
        self._live[setup.index] = child
        return report

    async def _replace(self, dead: WorkerChild) -> None:
        index = dead.index
        await dead.close()
        while self._restarts[index] < RESTARTS:
            await asyncio.sleep(self._back_off_s * 2 ** self._restarts[index])
            await until_served(self.engines, limit_s=self._wait_s, look_s=self._back_off_s)
            self._restarts[index] += 1
            try:
                await self._start(self._setups[index])
            except Exception as error:  # recording boundary: sandboxes may be a user's
                logger.warning("worker %d could not be started again: %r", index, error)
                continue
            logger.warning("worker %d was started again", index)
            return
        logger.error("worker %d died more than %d times and stays out", index, RESTARTS)
