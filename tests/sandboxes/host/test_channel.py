"""The host's end of the wire, against a scripted peer, and what is kept of long output."""

from __future__ import annotations

import asyncio
import errno
import marshal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.guest.capture import Capture
from agentrl_sandboxes.host.answers import decode_result, join_output
from agentrl_sandboxes.host.channel import Channel
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome


class Peer:
    """The other end, driven by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def take(self) -> tuple[int, int, object]:
        head = await self.reader.readexactly(wire.HEAD.size)
        size, kind, ident = wire.HEAD.unpack(head)
        body = await self.reader.readexactly(size)
        return kind, ident, marshal.loads(body) if body else None

    def answer(self, kind: int, ident: int, body: bytes) -> None:
        self.writer.write(wire.HEAD.pack(len(body), kind, ident) + body)

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def linked() -> tuple[Channel, Peer]:
    """A channel that has begun, and its guest."""
    ours, theirs = socket.socketpair()
    channel = Channel(*await asyncio.open_connection(sock=ours))
    peer = Peer(*await asyncio.open_connection(sock=theirs))
    peer.answer(wire.READY, 0, b"")
    await channel.start(wire.HEAD.pack(0, wire.CONFIG, 0), timeout_s=120.0)
    await peer.take()
    return channel, peer


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Channel, Peer]]:
    channel, peer = await linked()
    try:
        yield channel, peer
    finally:
        await channel.close("over")
        await peer.close()


async def test_answers_find_their_requests_in_any_order() -> None:
    # Fails if answers are matched by order of arrival instead of by id.
    async with connected() as (channel, peer):
        requests = [
            asyncio.create_task(channel.request(wire.READ, {"n": n}, timeout_s=120.0))
            for n in range(3)
        ]
        seen = [await peer.take() for _ in range(3)]
        for kind, ident, body in reversed(seen):
            assert kind == wire.READ
            assert isinstance(body, dict)
            peer.answer(wire.DATA, ident, b"%d" % body["n"])
        assert await asyncio.gather(*requests) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EISDIR, IsADirectoryError),
        (errno.EACCES, PermissionError),
        (errno.ENOSPC, OSError),
        (wire.TOO_LARGE, ValueError),
    ],
)
async def test_errors_of_the_guest_keep_their_kind(number: int, error: type[Exception]) -> None:
    async with connected() as (channel, peer):
        task = asyncio.create_task(channel.request(wire.READ, {}, timeout_s=120.0))
        _, ident, _ = await peer.take()
        peer.answer(wire.FAILED, ident, wire.ERROR.pack(number) + b"no such luck")
        with pytest.raises(error, match="no such luck"):
            await task


async def test_a_peer_that_hangs_up_fails_what_waits_and_what_comes() -> None:
    async with connected() as (channel, peer):
        task = asyncio.create_task(channel.request(wire.EXEC, {}, timeout_s=120.0))
        await peer.take()
        peer.writer.close()
        with pytest.raises(SandboxError, match="ended unexpectedly"):
            await task
        with pytest.raises(SandboxError):
            await channel.request(wire.READ, {}, timeout_s=120.0)


async def test_a_peer_that_sends_nonsense_is_a_sandbox_error() -> None:
    # Fails if the length in a frame is believed: 4 GB would be waited for, and then allocated.
    async with connected() as (channel, peer):
        task = asyncio.create_task(channel.request(wire.EXEC, {}, timeout_s=120.0))
        await peer.take()
        peer.writer.write(b"\xff" * 64)
        with pytest.raises(SandboxError):
            await task


async def test_a_peer_that_does_not_answer_is_a_sandbox_error() -> None:
    async with connected() as (channel, _):
        with pytest.raises(SandboxError, match="no answer"):
            await channel.request(wire.READ, {}, timeout_s=0.05)


async def test_cancelled_command_tells_the_peer() -> None:
    async with connected() as (channel, peer):
        task = asyncio.create_task(channel.request(wire.EXEC, {}, timeout_s=120.0))
        _, ident, _ = await peer.take()
        task.cancel()
        assert await peer.take() == (wire.CANCEL, ident, None)


@given(st.lists(st.binary(max_size=300)), st.integers(1, 200))
def test_capture_keeps_both_ends_whatever_the_chunks(chunks: list[bytes], limit: int) -> None:
    # Fails if a chunk that crosses from head to tail loses or repeats a byte.
    capture = Capture(limit)
    for chunk in chunks:
        capture.add(chunk)
    whole = b"".join(chunks)
    head, tail, gap = capture.parts()
    assert len(head) + len(tail) + gap == len(whole) == capture.total
    assert len(head) + len(tail) <= limit
    assert whole.startswith(head)
    assert whole.endswith(tail)
    if gap == 0:
        assert head + tail == whole
    else:
        assert len(head) + len(tail) == limit


def test_capture_is_bounded_in_memory() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.add(b"x" * 1000)
        assert len(capture.tail) <= 4 * 500 + 4096 + 1000


@given(st.text(alphabet="a\u00e9\u6f22\U0001f600", min_size=30, max_size=60), st.integers(4, 40))
def test_no_character_is_cut_in_two(text: str, limit: int) -> None:
    # Fails if the ends are decoded as they were cut: replacement characters appear.
    data = text.encode()
    capture = Capture(limit)
    capture.add(data)
    head, tail, gap = capture.parts()
    joined = join_output(head, tail, gap)
    assert "\N{REPLACEMENT CHARACTER}" not in joined
    if gap:
        left, _, rest = joined.partition("\n[... ")
        count, _, right = rest.partition(" bytes left out ...]\n")
        assert len(left.encode()) + int(count) + len(right.encode()) == len(data)
        assert text.startswith(left)
        assert text.endswith(right)


def test_results_are_decoded() -> None:
    parts = (b"out", b"", b"er", b"r")
    sizes = [len(part) for part in parts]
    body = wire.DONE.pack(wire.ENDED, 0x0300, 1.5, 0, 7, *sizes) + b"".join(parts)
    result = decode_result(body)
    assert (result.outcome, result.exit_code, result.stdout) == (Outcome.NONZERO, 3, "out")
    assert (result.stdout_truncated, result.stderr_truncated) == (False, True)
    assert result.duration_s == 1.5
    killed = decode_result(wire.DONE.pack(wire.OOM, 9, 1.0, 0, 0, 0, 0, 0, 0))
    assert (killed.outcome, killed.exit_code) == (Outcome.OOM, None)
