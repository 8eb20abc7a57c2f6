"""Sleep of one vLLM server that shares its device with the trainer.

    sleep           POST /sleep?level=L&mode=keep, GET /is_sleeping     frees weights and cache
    wake weights    POST /wake_up?tags=weights                          before weights are loaded
    wake cache      POST /wake_up?tags=kv_cache                         last: vLLM goes on by itself

Level 1 keeps the weights in main memory, level 2 forgets them: whoever asks the server reads then
that its weights are torn, until new ones have been loaded. What a server freed is measured when it
goes to sleep, so a wake that would not find as much again is refused before vLLM is asked: a wake
that fails inside vLLM leaves a server that only a new start mends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.errors import EngineError, WakeFailed
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.serving.vllm.update import Ask
from agentrl.serving.vllm.wire import TORN

SleepLevel = Literal[1, 2]
Tag = Literal["weights", "kv_cache"]
WAKE_LIMIT_S = 45.0
"""Seconds to fall asleep, and for each part to wake up: fewer than `resume` may take
(`STUCK_AFTER_S`), so that the error names what was asked. Level 1 copies all weights."""
_ALL: frozenset[Tag] = frozenset(("weights", "kv_cache"))
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """A device that a server and a trainer use in turn."""

    name: str
    """Name for messages, as `cuda:0`."""
    memory: Callable[[], tuple[int, int]]
    """Free and total bytes of it."""
    engines_turn: Callable[[], bool] = lambda: True
    """False while the trainer has it: nothing may wake up then."""
    log: str = ""
    """File with the output of the server."""
    limit_s: float = WAKE_LIMIT_S
    """Seconds to fall asleep, and to take each part back."""


class ServerSleep:
    """State of one server: which of its memory is off the device, and how much that is."""

    def __init__(self, server: str, ask: Ask) -> None:
        """Take an awake server.

        Args:
            server: name and address for messages.
            ask: sends a request to it.
        """
        self._server, self._ask = server, ask
        self._asleep: frozenset[Tag] = frozenset()
        self._missing_bytes = 0
        self.device: SharedDevice | None = None
        """The device; None for a server that never sleeps."""

    @property
    def asleep(self) -> bool:
        """True if some of its memory is off the device."""
        return bool(self._asleep)

    async def sleep(self, level: SleepLevel) -> None:
        """Free the device. The server is paused. Does nothing for one that sleeps.

        Raises:
            WakeFailed: it does not sleep, or freed nothing; its memory may be anywhere.
        """
        device = self._device()
        if self._asleep == _ALL:
            return
        before, _ = device.memory()
        try:
            if level == 2:
                await self._call("POST", "/update_weight_version", {"new_version": TORN})
            await self._call("POST", f"/sleep?level={level}&mode=keep")
            state = await self._call("GET", "/is_sleeping")
        except EngineError as error:
            raise self._failed(f"did not go to sleep: {error}") from error
        if not state.get("is_sleeping"):
            raise self._failed(f"GET /is_sleeping: is awake after POST /sleep, answered {state}")
        after, _ = device.memory()
        if after <= before:
            raise self._failed(
                f"POST /sleep freed nothing on {device.name} ({_gib(after)} are free); start it "
                "with --enable-sleep-mode"
            )
        self._missing_bytes += after - before
        self._asleep = _ALL

    async def wake(self, tag: Tag) -> None:
        """Take memory back. Does nothing where it is on the device already.

        Raises:
            EngineError: the trainer has the device.
            WakeFailed: it does not wake up, or too little memory is free.
        """
        if tag not in self._asleep:
            return
        device, path = self._device(), f"/wake_up?tags={tag}"
        if not device.engines_turn():
            raise EngineError(f"{self._server} sleeps: the trainer has {device.name}")
        before, total = device.memory()
        if before < self._missing_bytes:
            raise self._failed(self._too_little(path, before, total))
        try:
            answer = await self._call("POST", path)
        except EngineError as error:
            free, total = device.memory()
            raise self._failed(
                f"did not wake up: {error}; it asks for {_gib(self._missing_bytes)}, "
                f"{_gib(before)} of {_gib(total)} were free on {device.name} and {_gib(free)} are"
            ) from error
        self._asleep -= {tag}
        self._missing_bytes = max(0, self._missing_bytes - max(0, before - device.memory()[0]))
        if not self._asleep:
            self._missing_bytes = 0
            if answer.get("status") != "awake":
                raise self._failed(f"POST {path}: still sleeps, answered {answer}")

    async def _call(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        limit_s = self._device().limit_s
        try:
            async with LoopTimeout(limit_s):
                return await self._ask(method, path, content)
        except TimeoutError:
            raise EngineError(f"{method} {path}: no answer within {limit_s:g} s") from None

    def _too_little(self, path: str, free: int, total: int) -> str:
        device = self._device()
        short = self._missing_bytes - free
        return (
            f"POST {path} asks for {_gib(self._missing_bytes)}, which it freed when it went to "
            f"sleep, and {_gib(free)} of {_gib(total)} are free on {device.name}: lower "
            f"serving.kv_cache_gb by {short / _GIB:.2f}, move more of the trainer with "
            "runtime.offload, or end what else uses the device"
        )

    def _device(self) -> SharedDevice:
        if self.device is None:
            raise EngineError(f"{self._server} shares no device with a trainer and never sleeps")
        return self.device

    def _failed(self, why: str) -> WakeFailed:
        log = self.device.log if self.device is not None else ""
        return WakeFailed(f"{self._server}: {why}" + (f"; its log: {log}" if log else ""))


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
