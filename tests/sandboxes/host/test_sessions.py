"""Programs that stay, on the host's side: a guest that cannot be trusted, and limits on memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.answers import decode_tree, exit_code
from agentrl_sandboxes.host.sessions import WINDOW, SessionProcess

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome
from tests.sandboxes.host.test_channel import Peer, linked


@asynccontextmanager
async def session() -> AsyncIterator[tuple[SessionProcess, Peer, int]]:
    """A process whose guest is driven by the test, and the id of its session."""
    channel, peer = await linked()
    process = SessionProcess(channel)
    begun = asyncio.create_task(process.begin({"argv": [b"x"]}))
    kind, ident, body = await peer.take()
    assert isinstance(body, dict)
    assert (kind, body["credit"]) == (wire.START, WINDOW)
    # At once, as a quick program does it: output may come before anybody has read the answer.
    peer.answer(wire.DATA, ident, b"")
    peer.answer(wire.OUTPUT, ident, b"first")
    await begun
    try:
        yield process, peer, ident
    finally:
        await channel.close("over")
        await peer.close()


def result(reason: int, status: int) -> bytes:
    return wire.DONE.pack(reason, status, 0.1, 0, 0, 0, 0, 0, 0)


async def test_output_is_granted_again_when_it_is_read() -> None:
    # Fails if bytes are granted as they come: a reader that sleeps would fill memory.
    async with session() as (process, peer, ident):
        assert await process.read(timeout_s=120.0) == b"first"
        assert await peer.take() == (wire.GRANT, 0, {"session": ident, "size": 5})
        for _ in range(WINDOW // 2**16):
            peer.answer(wire.OUTPUT, ident, bytes(2**16))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.take(), 0.1)
        size = 0
        while size < WINDOW:
            size += len(await process.read(timeout_s=120.0))
        kind, _, _ = await peer.take()
        assert kind == wire.GRANT


async def test_a_guest_that_sends_more_than_was_granted_is_cut_off() -> None:
    # Fails if the host believes in the guest's flow control: memory grows without end.
    async with session() as (process, peer, ident):
        for _ in range(WINDOW // 2**16 + 1):
            peer.answer(wire.OUTPUT, ident, bytes(2**16))
        await asyncio.sleep(0.1)
        with pytest.raises(SandboxError, match="ended unexpectedly"):
            await process.interrupt()


async def test_output_before_the_end_is_not_lost() -> None:
    async with session() as (process, peer, ident):
        peer.answer(wire.OUTPUT, ident, b" and last")
        peer.answer(wire.RESULT, ident, result(wire.OOM, 9))
        await asyncio.sleep(0.05)
        text = b"first and last\n[killed: more memory than the limit]\n"
        assert await process.read(timeout_s=120.0) == text
        assert await process.read(timeout_s=120.0) == b""
        assert await process.close() is None
        assert process.outcome is Outcome.OOM


async def test_close_waits_for_the_end_and_is_harmless_afterwards() -> None:
    # Fails if close trusts that a frame sent is a program ended.
    async with session() as (process, peer, ident):
        closing = asyncio.create_task(process.close())
        assert await peer.take() == (wire.END, ident, {})
        await asyncio.sleep(0.05)
        assert not closing.done()
        peer.answer(wire.RESULT, ident, result(wire.ENDED, 0x0700))
        assert await closing == 7 == await process.close()
        with pytest.raises(SandboxError, match="closed"):
            await process.write(b"x")


async def test_a_write_that_is_given_up_is_taken_back() -> None:
    # Fails if the guest goes on keeping what a cancelled write has sent.
    async with session() as (process, peer, ident):
        writing = asyncio.create_task(process.write(b"x" * 100_000))
        kind, number, body = await peer.take()
        assert isinstance(body, dict)
        assert (kind, body["session"], len(body["data"])) == (wire.INPUT, ident, 2**16)
        writing.cancel()
        assert await peer.take() == (wire.CANCEL, number, None)


async def test_last_words_of_a_supervisor_are_the_reason() -> None:
    # Fails if a sandbox whose lifetime is over looks like one that crashed.
    async with session() as (process, peer, _):
        peer.answer(wire.FAILED, 0, wire.ERROR.pack(62) + b"its lifetime is over")
        peer.writer.close()
        assert await process.read(timeout_s=120.0) == b"first"
        with pytest.raises(SandboxError, match="its lifetime is over"):
            await process.read(timeout_s=1.0)
        assert await process.close() is None


def member(name: bytes, data: bytes, kind: bytes = b"f", mode: int = 0) -> bytes:
    return wire.MEMBER.pack(kind, mode, len(name), len(data)) + name + data


ROOT = member(b"", b"", b"d", 0o755)


def test_files_are_unpacked() -> None:
    body = member(b"a/b", b"one") + member(b"\xff", b"")
    expected = [("a/b", b"one"), ("\udcff", b"")]
    found = decode_tree(body, 3, whole=False).entries
    assert [(path, entry.data) for path, entry in found.items()] == expected
    assert decode_tree(b"", 0, whole=False).entries == {}
    whole = decode_tree(ROOT + body + member(b"p", b"", b"s"), 3)
    assert ([*whole.entries], whole.left_out) == (["", "a/b", "\udcff"], ("p",))


@pytest.mark.parametrize(
    "body",
    [
        member(b"/etc/passwd", b"x"),
        member(b"../up", b"x"),
        member(b"a/../../up", b"x"),
        member(b"a//b", b"x"),
        member(b"", b"x"),
        member(b"long", b"x" * 11),
        member(b"cut", b"xyz")[:-1],
        member(b"kind", b"", b"x"),
        member(b"mode", b"", b"d", 0o10000),
        wire.MEMBER.pack(b"f", 0, 3, 2**62) + b"big",
        b"\0",
    ],
)
def test_a_list_of_files_that_would_do_harm_is_refused(body: bytes) -> None:
    # Fails if names are joined to a host directory unseen, or lengths are believed.
    with pytest.raises(SandboxError, match="broken list"):
        decode_tree(body, 10, whole=False)
    with pytest.raises(SandboxError, match="broken list"):
        decode_tree(ROOT + body, 10)
    with pytest.raises(SandboxError, match="broken list"):
        decode_tree(member(b"no root", b""), 10)


def test_a_status_that_is_none_is_refused() -> None:
    assert exit_code(wire.ENDED, 9) == -9
    assert exit_code(wire.OOM, 9) is None
    with pytest.raises(SandboxError, match="no wait status"):
        exit_code(wire.ENDED, 0x137F)
