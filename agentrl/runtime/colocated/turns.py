"""`TurnTaking`: trainer and vLLM servers of one device use it in turn.

                 pause, sleep            bring back
    engines' turn ----------> (nobody's) ----------> trainer's turn
          ^                                               |
          +------- wake weights, load, wake cache <-------+  put aside

Invariants:

- The trainer's state comes back only after every server of the run sleeps. One that does not is
  ended, which frees its memory for certain, and started again in the engines' turn.
- In the trainer's turn no server wakes up and none is started; one that was being started when the
  turn began is waited for, and sleeps with the others.
- Servers wake up where a sync loads weights and resumes them (`agentrl.serving.vllm.sleep`), so one
  that fails then is treated as any engine that misses a sync: quarantined, started again by the
  keeper, and given the newest weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from agentrl.errors import EngineError
from agentrl.machine.compute_threads import run_computing
from agentrl.metrics import MetricBag
from agentrl.serving.client import TokenClient
from agentrl.serving.vllm.sleep import SharedDevice, SleepLevel

logger = logging.getLogger(__name__)


class Movable(Protocol):
    """State of a trainer that can leave its device. Both calls block."""

    @property
    def away_bytes(self) -> int:
        """Bytes that are in main memory now."""
        ...

    def put_aside(self) -> None:
        """Move it to main memory."""
        ...

    def bring_back(self) -> None:
        """Move it back, bit for bit.

        Raises:
            TrainError: the device has no room for it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleepers:
    """Servers that share the device, behind their client."""

    client: TokenClient
    """Client in front of their engines, and of others."""
    ends: Mapping[str, Callable[[], Awaitable[None]]]
    """By the name of its engine, ends the process of each."""


class TurnTaking:
    """Turns on one device. Lives in one event loop; begins as the engines' turn."""

    def __init__(
        self,
        *,
        device: SharedDevice,
        level: SleepLevel,
        note: Callable[[str], None],
    ) -> None:
        """Take the device.

        Args:
            device: shared by servers and trainer.
            level: at which servers sleep.
            note: called with what the user should read.
        """
        self._device, self._note = device, note
        self._level: SleepLevel = level
        self._sleepers: Sleepers | None = None
        self._trainer: Movable | None = None
        self._engines_turn = True
        self._starting = 0
        self._slept_at = self._turn_s = self._slept_s = 0.0
        self._changed = asyncio.Condition()
        self._change = asyncio.Lock()

    @property
    def engines_turn(self) -> bool:
        """True while servers may take memory."""
        return self._engines_turn

    def serve(self, sleepers: Sleepers) -> None:
        """Take the servers, which are awake."""
        self._sleepers = sleepers

    def attach(self, trainer: Movable) -> None:
        """Take the trainer, whose state is on the device, in its turn."""
        self._trainer = trainer

    def shared_device(self, log: str) -> SharedDevice:
        """The device as a server with this log sees it."""
        return replace(self._device, log=log, engines_turn=lambda: self._engines_turn)

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Wait for the engines' turn, and keep it while a server is started in the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._engines_turn)
            self._starting += 1
        try:
            yield
        finally:
            async with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    async def to_trainer(self) -> None:
        """Pause the engines, put their servers to sleep, and bring the trainer back.

        Raises:
            TrainError: the device has no room for the trainer.
        """
        async with self._change:
            if not self._engines_turn:
                return
            sleepers, began = self._sleepers, time.monotonic()
            assert sleepers is not None, "no servers yet"
            try:
                await sleepers.client.pause_all(or_none=True)
            except EngineError as error:
                logger.warning("the trainer takes the device without them: %s", error)
            async with self._changed:
                self._engines_turn = False
                await self._changed.wait_for(lambda: not self._starting)
            await asyncio.gather(*(self._put_to_sleep(sleepers, name) for name in sleepers.ends))
            self._slept_at = time.monotonic()
            if self._trainer is not None:
                await run_computing(self._trainer.bring_back)
            self._turn_s = time.monotonic() - began

    async def to_engines(self) -> None:
        """Put the trainer aside; a sync wakes the servers then, and those that ended may start."""
        async with self._change:
            if self._engines_turn:
                return
            self._slept_s = time.monotonic() - self._slept_at
            if self._trainer is not None:
                await run_computing(self._trainer.put_aside)
            async with self._changed:
                self._engines_turn = True
                self._changed.notify_all()

    def note_turn(self, bag: MetricBag, *, wake_s: float) -> None:
        """Add the numbers of the turn of the trainer that is over.

        Args:
            bag: of the sync that ended it.
            wake_s: seconds from its end until the servers sampled again.
        """
        bag.mean("sync/to_trainer_s", self._turn_s)
        bag.mean("sync/asleep_s", self._slept_s)
        bag.mean("sync/wake_s", wake_s)
        if self._trainer is not None:
            bag.mean("sync/put_aside_bytes", self._trainer.away_bytes)

    async def _put_to_sleep(self, sleepers: Sleepers, name: str) -> None:
        """Make sure that the server holds no memory of the device."""
        client = sleepers.client
        if name not in client.names():
            return
        try:
            await client.engine(name).sleep(self._level)
        except EngineError as error:
            self._note(f"{name} is ended, since the trainer needs its memory: {error}")
            await sleepers.ends[name]()
            if name in client.names():
                client.quarantine(name, str(error))
