"""Many fake vLLM servers in one child process: each turn is answered with prepared tokens.

A server speaks as much of vLLM's HTTP as `VllmEngine` uses. It waits as long as a turn takes and
then sends bytes that were made before, so hundreds of servers cost little beside the client that is
measured. New weights are acknowledged and not read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.machine.processes.child_main import ChildChannel

MODEL = "policy"
"""Model name that the servers report they serve."""
LOG_PROB = -0.5
"""Log-probability of every token that a fake server samples."""
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTurn:
    """The turn that every fake server samples, whatever it is asked."""

    seconds: float
    """Seconds until the answer is sent."""
    ids: Sequence[int]
    """Sampled ids, a stop token last."""
    max_context_tokens: int
    """Context length that the servers report."""


def serve(channel: ChildChannel) -> None:
    """Main function of a child that is fake servers.

    The first frame has `servers`, and the fields of `FakeTurn`. The answer has `ports`, one a
    server. Every later frame is answered with `turns` and `cpu_s` so far.
    """
    asyncio.run(_serve(channel))


async def _serve(channel: ChildChannel) -> None:
    asked = channel.receive().head
    servers = [_FakeServer(FakeTurn(**asked["turn"])) for _ in range(asked["servers"])]
    loop = asyncio.get_running_loop()
    ports: list[int] = []
    for server in servers:
        listening = await loop.create_server(
            lambda server=server: _Connection(server), "127.0.0.1", 0, backlog=4096
        )
        ports.append(listening.sockets[0].getsockname()[1])
    channel.end_with_parent()
    channel.send({"ports": ports})
    while True:
        await asyncio.to_thread(channel.receive)
        turns = sum(server.turns for server in servers)
        channel.send({"turns": turns, "cpu_s": time.process_time()})


class _FakeServer:
    """The state of one fake server."""

    def __init__(self, turn: FakeTurn) -> None:
        self.turns = 0
        self._turn = turn
        self._version = "0"
        self._paused = False
        self._sampled = self._generation()

    def answer(self, path: bytes, body: bytes) -> tuple[bytes, float]:
        """The answer to a request, and the seconds to wait before it is sent."""
        if path == b"/inference/v1/generate":
            self.turns += 1
            return self._sampled, self._turn.seconds
        return _http(self._control(path.partition(b"?")[0], body)), 0.0

    def _control(self, path: bytes, body: bytes) -> dict[str, Any]:
        if path == b"/v1/models":
            card = {"id": MODEL, "max_model_len": self._turn.max_context_tokens}
            return {"data": [card]}
        if path == b"/weight_info":
            return {"weight_version": self._version}
        if path == b"/update_weight_version":
            self._version = json.loads(body)["new_version"]
            if self._version.isdigit():
                # In an update a turn is answered as before it: a fake server does not freeze them.
                self._sampled = self._generation()
        elif path in (b"/pause", b"/resume"):
            self._paused = path == b"/pause"
        elif path == b"/is_paused":
            return {"is_paused": self._paused}
        return {"success": True}

    def _generation(self) -> bytes:
        """The answer to a turn under the weights that the server has."""
        ids = list(self._turn.ids)
        span = {"version": self._version, "start": 0, "end": len(ids)}
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": i, "logprob": LOG_PROB} for i in ids]},
            "finish_reason": "stop",
            "weight_versions": [span],
        }
        return _http({"choices": [choice], "usage": {}})


class _Connection(asyncio.Protocol):
    """One connection to a fake server; requests come one after the other."""

    _transport: asyncio.Transport

    def __init__(self, server: _FakeServer) -> None:
        self._server = server
        self._unread = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while (request := self._request()) is not None:
            answer, seconds = self._server.answer(*request)
            if seconds:
                asyncio.get_running_loop().call_later(seconds, self._send, answer)
            else:
                self._send(answer)

    def _request(self) -> tuple[bytes, bytes] | None:
        """Path and body of the first request, if it is whole."""
        end = self._unread.find(_HEAD_END)
        if end < 0:
            return None
        head = bytes(self._unread[:end])
        begin = end + len(_HEAD_END)
        stop = begin + _length(head)
        if len(self._unread) < stop:
            return None
        body = bytes(self._unread[begin:stop])
        del self._unread[:stop]
        return head.split(b" ", 2)[1], body

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def _length(head: bytes) -> int:
    """Bytes of the body that follows a head."""
    for line in head.split(b"\r\n")[1:]:
        if line[: len(_LENGTH)].lower() == _LENGTH:
            return int(line[len(_LENGTH) :])
    return 0


def _http(content: dict[str, Any]) -> bytes:
    body = json.dumps(content).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )
