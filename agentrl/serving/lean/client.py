"""`LeanEngine`: an engine in another process, behind an `EngineServer`.

    first request --dial--> connected --lost--> requests in flight fail, the next one dials
                      \\--failed--> requests are refused until the back-off has passed

It belongs to the event loop that uses it first. It never sends a turn twice, except after the
server has said that it could not sample it because it no longer holds its front.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentrl.engine import LONGEST_TURN_S, Engine, EngineHealth, WeightTicket
from agentrl.errors import EngineError, EngineRefused
from agentrl.serving.lean.link import LeanLink, LinkStats
from agentrl.serving.loop_timeout import LoopTimeout
from agentrl.types import Generation, ImageSpan, SamplingParams

Locate = Callable[[], Awaitable[str]]
"""Finds the address; asked before each dialling, because a server that was started again listens
somewhere else. Raises `EngineError` if there is none."""

SCHEME = "lean://"
"""Begins an address: `lean://host:port`."""
BACK_OFF_S = 0.1
"""Seconds without a new attempt after a failed one; doubles each time."""
MAX_BACK_OFF_S = 5.0
"""Most seconds between two attempts."""


def parse_address(address: str) -> tuple[str, int]:
    """(host, port) of `lean://host:port`.

    Raises:
        ValueError: another form.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    if not address.startswith(SCHEME) or not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"a lean address looks like lean://host:port, got {address!r}")
    return host.strip("[]"), int(port)


class LeanEngine(Engine):
    """Speaks to one `EngineServer`."""

    def __init__(
        self,
        address: str | Locate,
        *,
        name: str,
        secret: str,
        connect_timeout_s: float = 10.0,
        dead_after_s: float = 60.0,
        turn_timeout_s: float = LONGEST_TURN_S,
        control_timeout_s: float = 600.0,
    ) -> None:
        """Note the address; nothing is dialled before `connect` or the first request.

        Args:
            address: `lean://host:port`, or how to find it.
            name: unique among the engines behind one balancer.
            secret: the server's.
            connect_timeout_s: seconds for dialling and the handshake.
            dead_after_s: seconds of silence, in spite of pings, after which the server is dead.
            turn_timeout_s: seconds a turn may take, pauses included.
            control_timeout_s: seconds a pause or a load of weights may take.

        Raises:
            ValueError: an address of another form.
        """
        self.name = name
        self.stats = LinkStats()
        """Counts of the connection's traffic."""
        if isinstance(address, str):
            parse_address(address)
            self._locate, self._address = None, address
        else:
            self._locate, self._address = address, "an address not known yet"
        self._secret = secret
        self._connect_timeout_s = connect_timeout_s
        self._dead_after_s = dead_after_s
        self._turn_timeout_s = turn_timeout_s
        self._control_timeout_s = control_timeout_s
        self._link: LeanLink | None = None
        self._dialing: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed_dials = 0
        self._retry_at = 0.0
        self._trouble = ""
        self._version: int | None = None
        self._closed = False

    # -- turns ------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """Sample one turn; see `Generator.generate`."""
        link = self._link
        if link is None or not link.usable:
            link = await self._connected()
        return await link.generate(prompt_ids, sampling, session_id, images)

    async def end_session(self, session_id: str) -> None:
        """Notify the server. A lost connection has ended its sessions already."""
        if self._link is not None and self._link.usable:
            self._link.end_session(session_id)

    # -- control ----------------------------------------------------------------------------

    async def pause(self) -> None:
        """Pause the engine; see `Engine.pause`."""
        await self._control("pause")

    async def resume(self) -> None:
        """Resume the engine; see `Engine.resume`."""
        await self._control("resume")

    async def prepare_weights(self, backend: str, info: Mapping[str, Any]) -> None:
        """Prepare a transfer of weights; see `Engine.prepare_weights`."""
        await self._control("prepare_weights", backend=backend, info=dict(info))

    async def load_weights(self, ticket: WeightTicket) -> None:
        """Load new weights; see `Engine.load_weights`."""
        await self._control(
            "load_weights",
            backend=ticket.backend,
            version=ticket.version,
            info=dict(ticket.info),
            checksum=ticket.checksum,
        )

    @property
    def version(self) -> int:
        """As last received from the server, with every answer.

        Raises:
            EngineError: it was never connected.
        """
        if self._link is not None:
            self._version = self._link.version
        if self._version is None:
            raise EngineError(
                f"engine {self.name}: its version is not known before the first connection; "
                "await connect() first"
            )
        return self._version

    async def health(self) -> EngineHealth:
        """See `Engine.health`. Dials in spite of the back-off: asking is what ends it."""
        link = self._link
        in_flight = link.in_flight if link is not None else 0
        try:
            self._retry_at = 0.0
            said = await self._control("health", limit_s=self._connect_timeout_s)
            return EngineHealth(
                ready=bool(said["ready"]),
                version=int(said["version"]),
                in_flight=int(said["in_flight"]),
                detail=str(said["detail"]),
                metrics=said["metrics"],
            )
        except (EngineError, KeyError, TypeError, ValueError) as error:
            version = -1 if self._version is None else self._version
            return EngineHealth(
                ready=False, version=version, in_flight=in_flight, detail=str(error)
            )

    async def close(self, *, engine: bool = False) -> None:
        """Hang up; what is in flight fails. Idempotent.

        Args:
            engine: close the engine behind the server first.

        Raises:
            EngineError: that engine could not be closed.
        """
        try:
            if engine and not self._closed:
                await self._control("close")
        finally:
            self._closed = True
            if self._link is not None:
                await self._link.close("the engine was closed")

    # -- connection -------------------------------------------------------------------------

    async def connect(self) -> None:
        """Dial now instead of with the first request.

        Raises:
            EngineError: no server answers, or not with this protocol and secret.
        """
        self._retry_at = 0.0
        await self._connected()

    async def _control(
        self, op: str, *, limit_s: float | None = None, **arguments: Any
    ) -> dict[str, Any]:
        link = await self._connected()
        limit_s = self._control_timeout_s if limit_s is None else limit_s
        try:
            async with LoopTimeout(limit_s):
                said = await link.control(op, arguments)
        except TimeoutError as error:
            raise EngineError(
                f"engine {self.name} at {self._address}: no answer to {op} within {limit_s:g} s"
            ) from error
        self._version = link.version
        return said

    async def _connected(self) -> LeanLink:
        """The connection, dialled if there is none."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._dialing = loop, asyncio.Lock()
        if self._loop is not loop or self._dialing is None:
            raise EngineError(f"engine {self.name} belongs to another event loop; make a new one")
        async with self._dialing:  # protects `_link`: one dials, the others use what it got
            if self._closed:
                raise EngineRefused(f"engine {self.name} is closed")
            if self._link is not None and self._link.usable:
                return self._link
            if loop.time() < self._retry_at:
                raise EngineRefused(
                    f"engine {self.name} at {self._address} cannot be reached; next attempt in "
                    f"{self._retry_at - loop.time():.1f} s ({self._trouble})"
                )
            try:
                self._link = await self._dial(loop)
            except EngineRefused as error:
                wait_s = min(BACK_OFF_S * 2**self._failed_dials, MAX_BACK_OFF_S)
                self._failed_dials += 1
                self._retry_at, self._trouble = loop.time() + wait_s, str(error)
                raise
            self._failed_dials, self._retry_at = 0, 0.0
            self._version = self._link.version
            return self._link

    async def _dial(self, loop: asyncio.AbstractEventLoop) -> LeanLink:
        if self._locate is not None:
            try:
                self._address = await self._locate()
            except EngineError as error:  # asking where it is samples nothing
                raise EngineRefused(f"engine {self.name}: {error}") from error
        host, port = parse_address(self._address)
        who = f"engine {self.name} at {self._address}"
        link = LeanLink(
            who=who,
            secret=self._secret,
            dead_after_s=self._dead_after_s,
            turn_timeout_s=self._turn_timeout_s,
            stats=self.stats,
        )
        welcomed = False
        try:
            async with LoopTimeout(self._connect_timeout_s):
                await loop.create_connection(lambda: link, host, port)
                await link.welcome()
            welcomed = True
        except TimeoutError as error:
            raise EngineRefused(
                f"{who}: no handshake within connect_timeout_s={self._connect_timeout_s:g}; is it "
                "a lean server?"
            ) from error
        except OSError as error:
            raise EngineRefused(f"{who}: {error}") from error
        finally:
            if not welcomed:
                await link.close("the handshake failed")
        return link
