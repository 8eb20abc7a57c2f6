"""The client's end of one connection: requests in flight, and what the server holds.

Everything that is true only of this connection lives and dies with it: when it is lost, the server
has forgotten its sessions, and so has the book here. Frames queued in one turn of the event loop
leave in one write, and an arriving result completes a future: no task is made for a turn.

A request that was written may have been sampled, so it fails with `EngineError` when the
connection is lost; one that still waited to be written is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from agentrl.errors import EngineError, EngineRefused, SyncError
from agentrl.serving.lean import frames, turns
from agentrl.serving.lean.frames import FrameError, FrameKind
from agentrl.serving.lean.handshake import ClientHandshake, Peer
from agentrl.serving.lean.prefixes import ClientBook, Sent
from agentrl.serving.lean.turns import Failure
from agentrl.types import Generation, ImageSpan, SamplingParams

BEATS = 4
"""Pings in the time after which a silent server counts as dead."""

_ERRORS = {
    Failure.REFUSED: EngineRefused,
    Failure.ENGINE: EngineError,
    Failure.SYNC: SyncError,
}


@dataclass(slots=True, kw_only=True)
class LinkStats:
    """Counts of frames and bytes over the connections of one engine."""

    sent_bytes: int = 0
    """Written, frame heads included."""
    received_bytes: int = 0
    """Read, frame heads included."""
    writes: int = 0
    """Calls that wrote; each may hold many frames."""
    turns: int = 0
    """Requests sent."""
    full_prompts: int = 0
    """Prompts sent from their first token on."""
    asked_again: int = 0
    """Prompts the server asked to be given in full."""
    connections: int = 0
    """Connections made."""


@dataclass(slots=True)
class _Turn:
    """A turn in flight."""

    request_id: int
    session_id: str
    sampling: SamplingParams
    sent: Sent
    images: Sequence[ImageSpan]
    born: int
    future: asyncio.Future[Generation]


class LeanLink(asyncio.Protocol):
    """One connection; `await welcome` before the first request."""

    def __init__(
        self,
        *,
        who: str,
        secret: str,
        dead_after_s: float,
        turn_timeout_s: float,
        stats: LinkStats,
    ) -> None:
        """Prepare; the event loop calls `connection_made`.

        Args:
            who: names engine and address in messages.
            secret: shared with the server.
            dead_after_s: seconds of silence, in spite of pings, after which the server is dead.
            turn_timeout_s: seconds a turn may take.
            stats: counts on.
        """
        self._loop = asyncio.get_running_loop()
        self._who = who
        self._stats = stats
        self._beat_s = dead_after_s / BEATS
        self._turn_beats = max(1, round(turn_timeout_s / self._beat_s))
        self._turn_timeout_s = turn_timeout_s
        self._handshake = ClientHandshake(secret)
        self._welcome: asyncio.Future[Peer] = self._loop.create_future()
        self._splitter = frames.FrameSplitter(limit=frames.MAX_HANDSHAKE_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self._lost = ""
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._book = ClientBook()
        self._turns: dict[int, _Turn] = {}
        self._controls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._written_id = 0
        self._out: list[bytes] = []
        self._flushing = False
        self._blocked = False
        self._beat: asyncio.TimerHandle | None = None
        self._beats = 0
        self._silent_beats = 0
        self.version = -1
        """The weights of the engine, as last received from the server; from the handshake on."""

    # -- requests ---------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """True while requests can be sent."""
        return not self._lost

    @property
    def in_flight(self) -> int:
        """Turns without an answer."""
        return len(self._turns)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        session_id: str,
        images: Sequence[ImageSpan] = (),
    ) -> Generation:
        """One turn; see `Generator.generate`."""
        try:
            sent = self._book.take(session_id, prompt_ids)
            future = self._loop.create_future()
            turn = _Turn(0, session_id, sampling, sent, images, self._beats, future)
            self._send_turn(turn)
        except FrameError as error:
            raise EngineRefused(f"{self._who}: {error}") from error
        try:
            return await turn.future
        finally:
            # Still there only if the caller gave up: neither side then knows what the other has.
            if self._turns.pop(turn.request_id, None) is not None:
                self._queue(turns.encode_id(FrameKind.CANCEL, turn.request_id))

    def end_session(self, session_id: str) -> None:
        """Notify the server; it does not answer."""
        self._book.forget(session_id)
        self._queue(frames.frame(FrameKind.END_SESSION, session_id.encode()))

    async def control(self, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Everything that is not a turn.

        Raises:
            EngineError: it failed over there, or the connection was lost.
        """
        self._next_id += 1
        request_id = self._next_id
        try:
            body = {"op": op, "arguments": arguments}
            packed = turns.encode_control(FrameKind.CONTROL, request_id, body)
        except FrameError as error:
            raise EngineError(f"{self._who}: {op}: {error}") from error
        future = self._controls[request_id] = self._loop.create_future()
        self._queue(packed)
        try:
            return await future
        finally:
            self._controls.pop(request_id, None)

    async def welcome(self) -> None:
        """Wait for the end of the handshake.

        Raises:
            EngineError: the server is none of ours, or does not take us.
        """
        self.version = (await self._welcome).version
        self._splitter.limit = frames.MAX_FRAME_BYTES
        self._beat = self._loop.call_later(self._beat_s, self._on_beat)

    async def close(self, reason: str) -> None:
        """Hang up and wait until the socket is gone."""
        self._hang_up(reason)
        await self._closed

    def _send_turn(self, turn: _Turn) -> None:
        """Queue it under a new id, so that ids show what has been written."""
        sent, stats = turn.sent, self._stats
        self._next_id = turn.request_id = self._next_id + 1
        packed = turns.encode_generate(
            turn.request_id,
            turn.session_id,
            turn.sampling,
            have=sent.have,
            digest=sent.digest,
            new=sent.new,
            images=turn.images,
        )
        if len(packed) > frames.MAX_FRAME_BYTES:
            raise FrameError(f"a prompt of {len(packed)} bytes does not fit into a frame")
        stats.turns += 1
        stats.full_prompts += sent.have == 0
        self._turns[turn.request_id] = turn
        self._queue(packed)

    # -- writing ----------------------------------------------------------------------------

    def _queue(self, packed: bytes) -> None:
        self._out.append(packed)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if self._blocked or self._lost or transport is None or not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._written_id = self._next_id
        self._stats.sent_bytes += len(data)
        self._stats.writes += 1
        transport.write(data)

    def pause_writing(self) -> None:
        """The server reads too slowly; what is queued waits here."""
        self._blocked = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._blocked = False
        self._flush()

    # -- reading ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first frame of the handshake."""
        # Those of uvloop, which vLLM runs on, are not subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._stats.connections += 1
        self._transport.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        """Complete what is answered."""
        self._silent_beats = 0
        self._stats.received_bytes += len(data)
        try:
            for kind, payload in self._splitter.feed(data):
                if kind == FrameKind.RESULT:
                    self._on_result(payload)
                else:
                    self._on_other(kind, payload)
        except FrameError as error:
            self._hang_up(f"it answered with {error}")

    def _on_result(self, payload: bytes) -> None:
        request_id, version, generation, packed = turns.decode_result(payload)
        self.version = version
        turn = self._turns.pop(request_id, None)
        if turn is None or turn.future.done():
            return  # given up meanwhile
        self._book.keep(turn.session_id, turn.sent, generation.ids, packed)
        turn.future.set_result(generation)

    def _on_other(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.PONG:
            return
        if kind == FrameKind.NEED_FULL:
            self._on_need_full(turns.decode_id(payload))
        elif kind == FrameKind.ERROR:
            request_id, failure, text = turns.decode_error(payload)
            self._fail(request_id, _ERRORS[failure](f"{self._who}: {text}"))
        elif kind == FrameKind.ANSWER:
            request_id, body = turns.decode_control(payload)
            version = body.get("version")
            if isinstance(version, int):
                self.version = version
            future = self._controls.pop(request_id, None)
            if future is not None and not future.done():
                future.set_result(body)
        elif kind == FrameKind.CHALLENGE:
            assert self._transport is not None
            self._transport.write(self._handshake.prove(payload))
        elif kind == FrameKind.WELCOME:
            peer = self._handshake.welcomed(payload)
            if self._welcome.done():
                raise FrameError("a second welcome")
            self._welcome.set_result(peer)
        elif kind == FrameKind.REJECT:
            self._hang_up(f"it says: {payload.decode(errors='replace')}")
        else:
            raise FrameError(f"a frame of unknown kind {kind}")

    def _on_need_full(self, request_id: int) -> None:
        turn = self._turns.pop(request_id, None)
        if turn is None or turn.future.done():
            return
        if turn.sent.have == 0:
            raise FrameError("the wish for a prompt in full that it was given in full")
        self._stats.asked_again += 1
        self._book.full(turn.sent)
        self._send_turn(turn)

    def _fail(self, request_id: int, error: EngineError) -> None:
        turn = self._turns.pop(request_id, None)
        future = turn.future if turn else self._controls.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)

    # -- the end ----------------------------------------------------------------------------

    def _on_beat(self) -> None:
        """Ping; bury a server that is silent, and turns that take too long."""
        self._beat = self._loop.call_later(self._beat_s, self._on_beat)
        self._beats += 1
        self._silent_beats += 1
        if self._silent_beats > BEATS:
            self._hang_up(f"it was silent for {BEATS * self._beat_s:g} s")
            return
        self._queue(frames.frame(FrameKind.PING))
        oldest = self._beats - self._turn_beats
        for turn in [turn for turn in self._turns.values() if turn.born < oldest]:
            text = f"{self._who}: a turn took longer than turn_timeout_s={self._turn_timeout_s:g}"
            self._queue(turns.encode_id(FrameKind.CANCEL, turn.request_id))
            self._fail(turn.request_id, EngineError(text))

    def _hang_up(self, reason: str) -> None:
        self._bury(reason)
        if self._transport is not None:
            self._transport.abort()
        elif not self._closed.done():
            self._closed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end went, or this one hung up."""
        reason = f"connection lost ({exc})" if exc else "connection closed by the server"
        if not self._welcome.done():
            reason += " before the end of the handshake; is it a lean server?"
        self._bury(reason)
        if not self._closed.done():
            self._closed.set_result(None)

    def _bury(self, reason: str) -> None:
        """Fail everything; the first reason is the one that counts."""
        if self._lost:
            return
        self._lost = reason
        if self._beat is not None:
            self._beat.cancel()
        if not self._welcome.done():
            self._welcome.set_exception(EngineRefused(f"{self._who}: {reason}"))
            self._welcome.exception()  # read here: there may be no waiter left
        waiting: list[int] = [*self._turns, *self._controls]
        for request_id in waiting:
            if request_id <= self._written_id:
                text = f"{self._who}: {reason}; the request may have been served"
                self._fail(request_id, EngineError(text))
            else:
                text = f"{self._who}: {reason}; the request was not sent"
                self._fail(request_id, EngineRefused(text))
        self._out.clear()
