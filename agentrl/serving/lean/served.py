"""The server's end of one connection: its turns, its sessions, its answers.

A turn is a task here; its answer, and those of other turns that end in the same turn of the event
loop, leave in one write. When the connection is lost its turns are cancelled and its sessions end,
but a control request runs to its end: weights half loaded would be worse than those
of a lost client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

from agentrl.engine import Engine
from agentrl.errors import EngineError, EngineRefused, SyncError
from agentrl.plugins.user_code import was_cancelled
from agentrl.serving.lean import frames, turns
from agentrl.serving.lean.control import run_control
from agentrl.serving.lean.frames import FrameError, FrameKind
from agentrl.serving.lean.handshake import Peer, ServerHandshake, encode_welcome
from agentrl.serving.lean.prefixes import HeldPrefix, ServerBook
from agentrl.serving.lean.turns import Failure

logger = logging.getLogger(__name__)

SILENCE_S = 600.0
"""Seconds after which a client that does not even ping is gone."""


class ServedConnection(asyncio.Protocol):
    """Connection of one client, on the server's side."""

    def __init__(
        self,
        engine: Engine,
        *,
        secret: str,
        max_session_tokens: int,
        handshake_s: float,
        connections: set[ServedConnection],
    ) -> None:
        """Prepare; the event loop calls `connection_made`.

        Args:
            engine: serves the turns.
            secret: the client must know it.
            max_session_tokens: most ids held for it.
            handshake_s: seconds to show that it knows the secret.
            connections: holds this one as long as anything of it is left.
        """
        self._engine = engine
        self._connections = connections
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._splitter = frames.FrameSplitter(limit=frames.MAX_HANDSHAKE_BYTES)
        self._book = ServerBook(max_tokens=max_session_tokens)
        self._transport: asyncio.WriteTransport | None = None
        self._handshake = ServerHandshake(secret)
        self._open = False
        self._lost = False
        self._turns: dict[int, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        """Everything that runs for this client."""
        self._out: list[bytes] = []
        self._flushing = False
        self._blocked = False
        self._received = True
        self._watch: asyncio.TimerHandle | None = None

    # -- connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a hello."""
        # Those of uvloop, which vLLM runs on, are not subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._connections.add(self)
        self._watch = self._loop.call_later(self._handshake_s, self._on_watch)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel its turns, end its sessions."""
        self._lost = True
        if self._watch is not None:
            self._watch.cancel()
        self._out.clear()
        for task in self._turns.values():
            task.cancel()
        self._start(self._end_all_sessions())

    async def _end_all_sessions(self) -> None:
        await asyncio.gather(*self._turns.values(), return_exceptions=True)
        for session_id in self._book:
            await self._end_session(session_id)

    def hang_up(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _on_watch(self) -> None:
        if not self._open or not self._received:
            logger.info("a lean client was silent; its connection is cut")
            self.hang_up()
            return
        self._received = False
        self._watch = self._loop.call_later(SILENCE_S, self._on_watch)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("lean server: %r", error, exc_info=error)
            self.hang_up()
        if self._lost and not self.tasks:
            self._connections.discard(self)

    # -- writing ----------------------------------------------------------------------------

    def _queue(self, packed: bytes) -> None:
        if self._lost:
            return
        self._out.append(packed)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._blocked or self._lost or not self._out or self._transport is None:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._transport.write(data)

    def pause_writing(self) -> None:
        """The client reads too slowly; at most its own turns in flight wait here."""
        self._blocked = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._blocked = False
        self._flush()

    # -- reading ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Serve what is asked."""
        self._received = True
        try:
            for kind, payload in self._splitter.feed(data):
                if self._lost:
                    return
                if not self._open:
                    self._on_stranger(kind, payload)
                elif kind == FrameKind.GENERATE:
                    self._on_generate(turns.decode_generate(payload))
                else:
                    self._on_other(kind, payload)
        except FrameError as error:
            self._reject(str(error))

    def _reject(self, text: str) -> None:
        """Send the reason, then hang up."""
        logger.warning("a lean client is turned away: %s", text)
        self._lost = True
        if self._transport is not None:
            self._transport.write(frames.frame(FrameKind.REJECT, text.encode(errors="replace")))
            self._transport.close()

    def _on_stranger(self, kind: int, payload: bytes) -> None:
        transport, engine = self._transport, self._engine
        assert transport is not None
        if kind == FrameKind.HELLO:
            transport.write(self._handshake.challenge(payload))
        elif kind == FrameKind.PROOF:
            self._handshake.check(payload)
            self._open = True
            self._splitter.limit = frames.MAX_FRAME_BYTES
            peer = Peer(name=engine.name, version=engine.version)
            transport.write(encode_welcome(peer))
        else:
            raise FrameError(f"a frame of kind {kind} before the end of the handshake")

    def _on_other(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.PING:
            self._queue(frames.frame(FrameKind.PONG))
        elif kind == FrameKind.CANCEL:
            task = self._turns.get(turns.decode_id(payload))
            if task is not None:
                task.cancel()
        elif kind == FrameKind.END_SESSION:
            session_id = frames.decode_text(payload)
            self._book.drop(session_id)
            self._start(self._end_session(session_id))
        elif kind == FrameKind.CONTROL:
            request_id, body = turns.decode_control(payload)
            self._start(self._control(request_id, body))
        else:
            raise FrameError(f"a frame of unknown kind {kind}")

    # -- requests ---------------------------------------------------------------------------

    def _on_generate(self, turn: turns.GenerateFrame) -> None:
        if turn.request_id in self._turns:
            raise FrameError(f"request {turn.request_id} is already being served")
        held = self._book.extend(turn.session_id, have=turn.have, new=turn.new, digest=turn.digest)
        if held is None:
            self._queue(turns.encode_id(FrameKind.NEED_FULL, turn.request_id))
            return
        ids = frames.unpack_ids(held.packed)
        task = self._start(self._generate(turn, held, ids))
        self._turns[turn.request_id] = task

    async def _generate(
        self, turn: turns.GenerateFrame, held: HeldPrefix, ids: tuple[int, ...]
    ) -> None:
        request_id = turn.request_id
        try:
            asked = ids, turn.sampling, turn.session_id
            if turn.images:
                generation = await self._engine.generate(*asked, turn.images)
            else:
                generation = await self._engine.generate(*asked)
            packed = frames.pack_ids(generation.ids)
            answer = turns.encode_result(
                request_id, generation, version=self._engine.version, packed_ids=packed
            )
            self._book.answered(turn.session_id, held, packed)
            self._queue(answer)
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            self._fail(request_id, EngineError("the engine cancelled the request"))
        except Exception as error:  # recording boundary: the caller gets any error
            self._fail(request_id, error)
        finally:
            self._turns.pop(request_id, None)

    async def _end_session(self, session_id: str) -> None:
        try:
            await self._engine.end_session(session_id)
        except Exception as error:  # recording boundary: the request has no answer
            logger.warning("session %s could not be ended: %r", session_id, error)

    async def _control(self, request_id: int, body: dict[str, Any]) -> None:
        try:
            answer = await run_control(self._engine, body)
            answer.setdefault("version", self._engine.version)
            self._queue(turns.encode_control(FrameKind.ANSWER, request_id, answer))
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            self._fail(request_id, EngineError("the engine cancelled the request"))
        except Exception as error:  # recording boundary: the caller gets any error
            self._fail(request_id, error)

    def _fail(self, request_id: int, error: BaseException) -> None:
        if isinstance(error, EngineRefused):
            failure = Failure.REFUSED
        elif isinstance(error, SyncError):
            failure = Failure.SYNC
        else:
            failure = Failure.ENGINE
        text = str(error) if isinstance(error, EngineError) else repr(error)
        self._queue(turns.encode_error(request_id, failure, text))
