"""The gateway as an ASGI application: from requests over HTTP to turns of sessions.

    POST /v1/chat/completions  /v1/messages  /v1/messages/count_tokens  /v1/responses
    POST /v1/reward            ends the rollout
    GET  /v1/models            the same below /s/SECRET

A session is a capability: whoever sends its secret, as part of the path, in the header
`x-agentrl-session`, or as the API key, asks for turns of its rollout. Nothing else names a session.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import choices
from agentrl.gateway.bodies import check_shape
from agentrl.gateway.posted import MOST_REWARD_BYTES, PostedReward, digest_of
from agentrl.gateway.records import (
    MODEL,
    ReadRequest,
    RefusalReason,
    RequestRefused,
    TurnAnswer,
    TurnRequest,
    check_number,
)
from agentrl.gateway.session import GatewaySession
from agentrl.gateway.wires import ChatWire, MessagesWire, ResponsesWire, Wire
from agentrl.gateway.wires.fields import wrong
from agentrl.gateway.wires.wire import as_json

logger = logging.getLogger(__name__)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

SESSION_HEADER = "x-agentrl-session"
TOKEN_HEADER = "x-agentrl-token"
KEEP_ALIVE_S = 10.0
"""Seconds without an event after which a stream sends a comment."""
BODY_S = 120.0
"""Seconds until the whole body of a request must be there."""
MOST_BYTES = 32 * 2**20
"""Most bytes of a request."""

_MESSAGES = MessagesWire()
_WIRES: Mapping[str, Wire] = {wire.path: wire for wire in (ChatWire(), _MESSAGES, ResponsesWire())}
_COUNT = "messages/count_tokens"
_MODELS = "models"
_REWARD = "reward"
_SESSIONS = "sessions"
_MOST_NAME = 256
"""Characters of the name of a model, which is written into the answer."""
_MOST_ENDED = 4096
"""Sessions that are over and whose reward is known still, for requests that are sent again."""


class _Dropped(Exception):
    """The client went away before it had its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The address of a request: session and wire from its path and headers."""

    path: str
    """Below `/v1/`; empty for the root of the server."""
    secret: str
    """Names the session; empty for none."""
    wire: Wire
    """In whose form errors are written."""


class Gateway:
    """Serves the open sessions; an ASGI application."""

    def __init__(
        self,
        *,
        models: Sequence[str] = (),
        token: str | None = None,
        most_bytes: int = MOST_BYTES,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        """Take the settings.

        Args:
            models: names under which the policy is asked for; without any, every name stands for
                it.
            token: a request that brings no secret of an open session must bring it, in the header
                `x-agentrl-token` or as the API key; None for servers that only this process, or
                one sandbox, can reach.
            most_bytes: of a request.
            keep_alive_s: seconds after which a stream that waits sends a comment.
        """
        self.refused: Counter[RefusalReason] = Counter()
        """Requests that got an error, by its reason."""
        self.dropped = 0
        """Requests whose client went away before it had its answer."""
        self._models = tuple(models)
        self._token = token
        self._most_bytes = most_bytes
        self._keep_alive_s = keep_alive_s
        self._sessions: dict[str, GatewaySession] = {}
        self._ended: dict[str, PostedReward] = {}

    @property
    def _shown_names(self) -> Sequence[str]:
        """Names under which it is listed."""
        return self._models or (MODEL,)

    @property
    def guarded(self) -> bool:
        """True if requests need an access token."""
        return self._token is not None

    def open(self, session: GatewaySession) -> None:
        """Serve a session from now on."""
        self._sessions[session.secret] = session

    async def close(self, session: GatewaySession) -> None:
        """Serve a session no longer, and end its turns that are under way."""
        self._sessions.pop(session.secret, None)
        if session.posted is not None:
            self._ended[session.secret] = session.posted
            if len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        await session.close()

    async def other(self, method: str, path: str, raw: bytes, receive: Receive, send: Send) -> bool:
        """Answer a request that names no session and no wire; False where there is no such."""
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets here; the server refuses them
        headers = headers_of(scope)
        place = _place(scope["path"], headers)
        session = self._sessions.get(place.secret)
        try:
            try:
                await self._answer(scope["method"], place, session, headers, receive, send)
            except RecursionError:
                raise _unreadable("its values are nested too deep") from None
            except UnicodeError as error:
                raise _unreadable(f"it holds characters that no text has: {error}") from None
        except RequestRefused as refused:
            self._count(refused, session)
            status, body = place.wire.error(refused)
            await send_json(send, status, body)
        except _Dropped:
            self.dropped += 1
            if session is not None:
                session.counts["dropped"] += 1

    async def _answer(
        self,
        method: str,
        place: _Place,
        session: GatewaySession | None,
        headers: Mapping[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        if session is None and place.secret not in self._ended:
            self._require_token(headers.get(TOKEN_HEADER) or place.secret)
        if not place.path:  # some agents look whether anything is there
            await send_json(send, 200, {"object": "gateway"})
            return
        asks = place.path in _WIRES or place.path == _COUNT
        lists = place.path.partition("/")[0] == _MODELS
        if place.path == _REWARD and method == "POST":
            raw = await _read_body(headers, receive, MOST_REWARD_BYTES)
            await send_json(send, 200, self._rewarded(place.secret, session, raw))
            return
        if place.path.startswith(_SESSIONS):
            raw = await _read_body(headers, receive, self._most_bytes)
            if await self.other(method, place.path, raw, receive, send):
                return
        if not (asks and method == "POST") and not (lists and method in ("GET", "HEAD")):
            known = [f"POST /v1/{path}" for path in (*_WIRES, _COUNT, _REWARD)] + [
                f"GET /v1/{_MODELS}"
            ]
            raise RequestRefused(
                RefusalReason.UNKNOWN_PATH, choices(f"{method} /v1/{place.path}"[:200], known)
            )
        if session is None:
            raise _no_session()
        if lists:
            await send_json(send, 200, self._listed(place.path.partition("/")[2]))
            return
        raw = await _read_body(headers, receive, self._most_bytes)

        def read() -> ReadRequest:
            body, digest = _parsed(raw, place, session)
            self._check_model(body)
            wire = _MESSAGES.read_count if place.path == _COUNT else place.wire.read
            return ReadRequest(request=wire(body, session.known), body=body, digest=digest)

        if place.path == _COUNT:
            tokens = await session.count(read, size=len(raw))
            await send_json(send, 200, {"input_tokens": tokens})
            return
        asked, turn = await session.ask(read, size=len(raw))
        request, body = asked.request, asked.body
        gone = asyncio.create_task(until_gone(receive))
        try:
            if request.stream:
                answer = await self._stream(place.wire, session, turn, request, body, gone, send)
            else:
                answer = await self._whole(place.wire, turn, body, gone, send)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        if answer is not None:
            session.deliver(answer)

    def _require_token(self, sent: str) -> None:
        if self._token and not hmac.compare_digest(sent.encode(), self._token.encode()):
            raise RequestRefused(
                RefusalReason.NO_ACCESS,
                f"send the access token of this gateway as {TOKEN_HEADER}, or use the address of "
                "an open session, /s/SECRET/v1, where none is needed",
            )

    def _rewarded(self, secret: str, session: GatewaySession | None, raw: bytes) -> dict[str, Any]:
        """The answer to a posted reward."""
        if session is not None:
            return session.reward(raw).answer
        ended = self._ended.get(secret)
        if ended is None or ended.digest != digest_of(raw):
            raise _no_session()
        return ended.answer

    async def _whole(
        self,
        wire: Wire,
        turn: asyncio.Task[TurnAnswer],
        body: Mapping[str, Any],
        gone: asyncio.Task[None],
        send: Send,
    ) -> TurnAnswer:
        await asyncio.wait((turn, gone), return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            raise _Dropped
        answer = _result(turn)
        await send_json(send, 200, wire.write(answer, body))
        if gone.done():
            raise _Dropped
        return answer

    async def _stream(
        self,
        wire: Wire,
        session: GatewaySession,
        turn: asyncio.Task[TurnAnswer],
        request: TurnRequest,
        body: Mapping[str, Any],
        gone: asyncio.Task[None],
        send: Send,
    ) -> TurnAnswer | None:
        """Send the answer as events; an error of the engine is one of them."""
        head = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        while not turn.done():
            await asyncio.wait(
                (turn, gone),
                timeout=self._keep_alive_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if gone.done():
                raise _Dropped
            if not turn.done():
                await _send_part(send, b": keep-alive\n\n")
        answer: TurnAnswer | None = None
        try:
            answer = _result(turn)
        except RequestRefused as refused:
            self._count(refused, session)
            await _send_part(send, wire.error_event(refused))
        else:
            for part in wire.events(answer, request, body):
                if gone.done():
                    raise _Dropped
                await _send_part(send, part)
                await asyncio.sleep(0)  # each may repeat the whole request
        await _send_part(send, b"", more=False)
        if gone.done():
            raise _Dropped
        return answer

    def _count(self, refused: RequestRefused, session: GatewaySession | None) -> None:
        self.refused[refused.reason] += 1
        if session is not None:
            session.refuse(refused)
        logger.info("request refused (%s): %s", refused.reason, refused.message)

    def _check_model(self, body: Mapping[str, Any]) -> None:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise wrong("model", model, f"a name, as {self._shown_names[0]!r}")
        if self._models and model not in self._models:
            raise RequestRefused(
                RefusalReason.UNKNOWN_MODEL, f"model is not served: {choices(model, self._models)}"
            )
        check_number("model", len(model), _MOST_NAME, "characters")

    def _listed(self, wanted: str) -> dict[str, Any]:
        """All models, or one, in a form that clients of both vendors read."""
        entries = [
            {
                "id": name,
                "object": "model",
                "type": "model",
                "created": 0,
                "owned_by": "agentrl",
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
            }
            for name in ([wanted] if wanted else self._shown_names)
        ]
        if wanted:
            self._check_model({"model": wanted})
            return entries[0]
        ends = {"first_id": self._shown_names[0], "last_id": self._shown_names[-1]}
        return {"object": "list", "data": entries, "has_more": False, **ends}


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers of a request, their names in lower case."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def _place(path: str, headers: Mapping[str, str]) -> _Place:
    secret = headers.get(SESSION_HEADER, "")
    if path.startswith("/s/"):
        secret, _, rest = path.removeprefix("/s/").partition("/")
        path = f"/{rest}"
    if not secret:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        bearer = key.strip() if scheme.lower() == "bearer" else ""
        secret = headers.get("x-api-key", "") or bearer
    path = path.strip("/").removeprefix("v1").strip("/")
    wire = _WIRES.get(path.removesuffix("/count_tokens"))
    if wire is None:
        wire = _MESSAGES if "anthropic-version" in headers else _WIRES["chat/completions"]
    return _Place(path=path, secret=secret, wire=wire)


async def _read_body(headers: Mapping[str, str], receive: Receive, most: int) -> bytes:
    said = headers.get("content-length", "")
    size = int(said) if said.isdecimal() else 0
    parts: list[bytes] = []
    total = 0
    more = size <= most
    until = asyncio.get_running_loop().time() + BODY_S
    while more:
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise RequestRefused(
                RefusalReason.TOO_LATE,
                f"{total} bytes of the body came within {BODY_S:g} s; send all of it at once",
            ) from None
        if message["type"] == "http.disconnect":
            raise _Dropped
        parts.append(message.get("body", b""))
        total += len(parts[-1])
        more = message.get("more_body", False) and total <= most
    if max(size, total) > most:
        raise RequestRefused(
            RefusalReason.TOO_LARGE,
            f"the request has {max(size, total)} bytes or more, at most {most} are read; send less",
        )
    return b"".join(parts)


def _no_session() -> RequestRefused:
    return RequestRefused(
        RefusalReason.UNKNOWN_SESSION,
        "no such session; use the address of an open one, /s/SECRET/v1, or send its "
        f"secret as the API key or as {SESSION_HEADER}",
    )


def _unreadable(why: str) -> RequestRefused:
    return RequestRefused(RefusalReason.BAD_REQUEST, f"the request cannot be read: {why}")


def _parsed(raw: bytes, place: _Place, session: GatewaySession) -> tuple[Mapping[str, Any], bytes]:
    """The body of a request, and what is the same for the same request."""
    check_shape(raw)
    try:
        body = session.known.bodies.read(raw, path=place.path, field=place.wire.history)
    except ValueError as error:
        raise RequestRefused(RefusalReason.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(body.value, dict):
        raise RequestRefused(
            RefusalReason.BAD_REQUEST,
            f"the body is a JSON {type(body.value).__name__}, expected an object",
        )
    return body.value, body.digest


def _result(turn: asyncio.Task[TurnAnswer]) -> TurnAnswer:
    """The answer of a turn that is done.

    Raises:
        RequestRefused: there is none.
    """
    if turn.cancelled():
        raise RequestRefused(
            RefusalReason.UNKNOWN_SESSION, "this session is closed: its rollout is over"
        )
    return turn.result()


async def until_gone(receive: Receive) -> None:
    """Wait until the client of a request whose body was read has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def send_json(send: Send, status: int, body: Mapping[str, Any]) -> None:
    """Send a whole answer."""
    data = as_json(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


async def _send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more})
