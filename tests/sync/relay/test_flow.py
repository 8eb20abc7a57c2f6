"""The sender's end of a relay whose members are threads that answer as they are told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrl.sync.relay import flow as flow_module
from agentrl.sync.relay.flow import RelayFlow
from agentrl.sync.relay.links import MemberLink
from agentrl.sync.transfer import SendFailed

Reply = Callable[[MemberLink], object]


class Relay:
    """A flow, the members' ends of its links, and what is set to abort it."""

    def __init__(self, limit_s: float, replies: dict[int, Reply | None]) -> None:
        pairs = {rank: socket.socketpair() for rank in replies}
        self.first = socket.socketpair()
        self.aborted = threading.Event()
        self.ends = {rank: MemberLink(pair[1]) for rank, pair in pairs.items()}
        self.links = {rank: MemberLink(pair[0]) for rank, pair in pairs.items()}
        self.flow = RelayFlow(
            MemberLink(self.first[0]), self.links, version=1, limit_s=limit_s, aborted=self.aborted
        )
        self.threads = [
            threading.Thread(target=self._answer, args=(self.ends[rank], reply))
            for rank, reply in replies.items()
            if reply is not None
        ]
        for thread in self.threads:
            thread.start()

    def _answer(self, end: MemberLink, reply: Reply) -> None:
        while not end.ended:
            message = end.read()
            if message is not None and "ask" in message:
                reply(end)
            time.sleep(0.005)

    def close(self) -> None:
        for link in (*self.links.values(), *self.ends.values()):
            link.close()
        for thread in self.threads:
            thread.join()
        for end in self.first:
            end.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def build(limit_s: float, *replies: Reply | None) -> Relay:
        made.append(Relay(limit_s, dict(enumerate(replies, start=1))))
        return made[-1]

    yield build
    for relay in made:
        relay.close()


def says(**message: Any) -> Reply:
    return lambda link: link.say(**message)


def later(reply: Reply) -> Reply:
    """Answers after several ticks, as a process on a loaded machine."""

    def wait(link: MemberLink) -> None:
        time.sleep(0.2)
        reply(link)

    return wait


WAITS = later(says(waits="input", idle_s=9.0))


@pytest.mark.parametrize(
    ("goes", "culprits"),
    [
        (says(gave_up="no room"), [2]),
        (MemberLink.close, [2]),
        (says(cut_off="rank 1 is gone"), []),
    ],
)
def test_those_that_are_asked_have_time_to_answer(
    make: Callable[..., Relay], goes: Reply, culprits: list[int]
) -> None:
    """Fails if one that goes makes silent members of all that have not answered at that moment."""
    relay = make(0.2, WAITS, goes, WAITS, WAITS)
    with pytest.raises(SendFailed):
        relay.flow.finish()
    assert relay.flow.evidence.silent == set()
    assert relay.flow.evidence.culprits() == culprits


def test_one_that_does_not_answer_is_silent(
    make: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "ANSWER_S", 0.5)
    relay = make(0.2, WAITS, None, WAITS)
    with pytest.raises(SendFailed, match="rank 2 does not answer"):
        relay.flow.finish()
    assert relay.flow.evidence.culprits() == [2]


def test_to_finish_is_an_answer(make: Callable[..., Relay]) -> None:
    """Fails if a send that every member has is reported as failed."""
    make(0.2, later(says(done=True)), later(says(done=True))).flow.finish()


def test_one_that_finishes_is_progress_of_all(make: Callable[..., Relay]) -> None:
    """Fails if the member behind one that has just finished is blamed."""
    replies = iter([says(waits="input", idle_s=9.0), says(done=True)])
    make(0.2, says(done=True), lambda link: next(replies)(link)).flow.finish()


def test_answers_to_an_earlier_question_are_no_evidence(make: Callable[..., Relay]) -> None:
    """Fails if an engine that was slow once is blamed for what ends the send later."""
    slow = [says(waits=word, idle_s=0.1) for word in ("output", "engine", "input")]
    relay = make(0.3, *slow)
    timer = threading.Timer(1.0, relay.aborted.set)
    timer.start()
    with pytest.raises(SendFailed, match="given up: aborted"):
        relay.flow.finish()
    assert relay.flow.evidence.culprits() == []
    timer.join()


def test_an_abort_does_not_wait_for_answers(make: Callable[..., Relay]) -> None:
    relay = make(0.2, None)
    timer = threading.Timer(0.5, relay.aborted.set)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(SendFailed, match="given up"):
        relay.flow.finish()
    assert time.monotonic() - begun < flow_module.ANSWER_S
    timer.join()


def test_members_hear_of_a_trainer_that_has_nothing_to_send(
    make: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a slow gather is a failure of the send, or looks like a sender that is gone."""
    monkeypatch.setattr(flow_module, "ALIVE_S", 0.2)
    relay = make(0.1, None)
    filled = threading.Event()
    timer = threading.Timer(1.0, filled.set)
    timer.start()
    relay.flow.write([memoryview(b"bucket")], filled)
    assert relay.first[1].recv(10) == b"bucket"
    assert relay.ends[1].read() == {"alive": True}
    timer.join()
