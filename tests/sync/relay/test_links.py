"""Links between members: what was said is heard, and no wait is deaf or endless."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from agentrl.sync.relay.links import (
    CONNECT_LIMIT_S,
    STRANGERS,
    MemberLink,
    accept_members,
    open_listener,
    reach,
    reason_of,
)
from agentrl.sync.transfer import MemberLost


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    made = open_listener("127.0.0.1")
    yield made
    made.close()


def meet(listener: socket.socket) -> MemberLink:
    host, port = listener.getsockname()
    return reach(host, port, who="the listener", timeout_s=120)


def accepted(listener: socket.socket) -> MemberLink:
    select.select([listener], [], [])
    return MemberLink(listener.accept()[0])


def test_what_one_said_before_it_went_is_heard(listener: socket.socket) -> None:
    """Fails if a question that comes too late hides the reason of a member that gave up."""
    member = meet(listener)
    sender = accepted(listener)
    sender.say(ask=True)
    time.sleep(0.05)
    member.say(gave_up="no room")
    member.close()  # with a message unread: the connection is reset
    time.sleep(0.05)
    sender.say(ask=True)
    sender.say(ask=True)
    assert sender.read() == {"gave_up": "no room"}
    assert sender.read() is None
    assert sender.ended
    sender.close()


def test_one_that_reads_nothing_does_not_block_the_sender() -> None:
    ours, theirs = socket.socketpair()
    link = MemberLink(ours)
    for _ in range(100_000):
        link.say(alive=True)
    assert not link.ended
    link.close()
    theirs.close()


def test_a_wait_for_a_connection_can_be_ended() -> None:
    """Fails if an abort, or the sender's question, waits until a host answers."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = [socket.socket() for _ in range(3)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(full.getsockname())
    host, port = full.getsockname()
    begun = time.monotonic()

    def check() -> None:
        if time.monotonic() - begun > 0.3:
            raise InterruptedError("aborted")

    with pytest.raises(MemberLost, match=r"rank 1 at .*: aborted"):
        reach(host, port, who="rank 1", timeout_s=60, check=check)
    assert time.monotonic() - begun < CONNECT_LIMIT_S / 2
    with pytest.raises(MemberLost, match="timed out"):
        reach(host, port, who="rank 1", timeout_s=0.3)
    for each in (full, *fillers):
        each.close()


def test_one_that_refuses_and_a_host_that_is_none_are_named(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    listener.close()
    with pytest.raises(MemberLost, match=rf"rank 2 at {host}:{port}: .*refused"):
        reach(host, port, who="rank 2", timeout_s=5)
    with pytest.raises(MemberLost, match="rank 2 at no such host"):
        reach("no such host", 1, who="rank 2", timeout_s=5)


def test_all_members_may_connect_before_the_first_speaks(listener: socket.socket) -> None:
    """Fails if a fleet of more engines than there may be strangers turns its own away."""
    ranks = range(1, 2 * STRANGERS)
    links = [meet(listener) for _ in ranks]
    came: dict[int, object] = {}

    def accept() -> None:
        came.update(
            accept_members(listener, ranks, lambda message: True, timeout_s=120, check=lambda: None)
        )

    thread = threading.Thread(target=accept)
    thread.start()
    time.sleep(1)
    for rank, link in zip(ranks, links, strict=True):
        link.say(rank=rank)
    thread.join()
    assert sorted(came) == list(ranks)
    for link in links:
        link.close()
    for link, _ in came.values():  # pyright: ignore[reportGeneralTypeIssues]
        link.close()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a \ud800"), "a ?"),
        (ValueError("x" * 70_000), "x" * 1000),
        (ValueError(), "ValueError()"),
        (GeneratorExit(), "its engine takes no more weights"),
    ],
)
def test_any_error_has_a_reason_that_a_message_carries(error: BaseException, text: str) -> None:
    """Fails if what ends a sync cannot be said, so that its own error hides the first."""
    ours, theirs = socket.socketpair()
    sender, member = MemberLink(ours), MemberLink(theirs)
    sender.say(end=reason_of(error))
    assert member.read() == {"end": text}
    sender.close()
    member.close()
