"""The sender's end of a relay: bytes go into the first member, and all are watched.

A failure is noticed by the connection that each member has to the sender: one that dies closes it,
one that gives up says why. One that hangs does neither, so when nothing has moved for the limit all
are asked what they wait for. While the trainer has nothing to send no member is at fault, and
members are notified that the sender lives.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Mapping, Sequence
from typing import cast

from agentrl.sync.relay.evidence import MemberReport, RelayEvidence, Waits
from agentrl.sync.relay.links import TICK_S, MemberLink, ready
from agentrl.sync.transfer import SendFailed

ANSWER_S = 5.0
"""Seconds that members have to answer a question."""
ALIVE_S = 1.0
"""Seconds between two signs of life of a sender that has nothing to send."""
GRACE_S = 0.5
"""Seconds in which the reasons of other members still come in after the first failure."""
MOVE_S = 1.0
"""Seconds in which members that all have answered still may move a byte."""


class RelayFlow:
    """Writes one send, from one thread at a time, and finds out who made it fail."""

    def __init__(
        self,
        first: MemberLink,
        members: Mapping[int, MemberLink],
        *,
        version: int,
        limit_s: float,
        aborted: threading.Event,
    ) -> None:
        """Take connections, which the caller closes.

        Args:
            first: takes the bytes.
            members: control connection of every receiver by rank.
            version: of the weights, for messages.
            limit_s: seconds without progress of any member until the send fails.
            aborted: ends the send from another thread.
        """
        self.evidence = RelayEvidence(size=len(members), limit_s=limit_s)
        """Facts about the members so far."""
        self._first, self._members = first, members
        self._version, self._limit_s, self._aborted = version, limit_s, aborted
        self._began = self._moved = time.monotonic()

    def write(self, parts: Sequence[memoryview], filled: threading.Event) -> None:
        """Send a bucket to the first member, and stand by until there is another.

        Args:
            parts: bytes of the bucket.
            filled: is set when the next one can be sent, or there is none.

        Raises:
            SendFailed: a member is gone or nothing moves; `evidence` says which.
        """
        self._moved = time.monotonic()
        for part in parts:
            sent = 0
            while sent < len(part):
                if self._wait(writing=True):
                    sent += self._send(part[sent:])
        notified = time.monotonic()
        while not filled.wait(TICK_S):
            self._moved = now = time.monotonic()  # a slow trainer is no failure
            self._wait(writing=False, limit_s=0)
            if now - notified > ALIVE_S:
                notified = now
                for link in self._members.values():
                    link.say(alive=True)

    def finish(self) -> None:
        """Wait until every member has passed on all bytes.

        Raises:
            SendFailed: as `write`.
        """
        self._moved = time.monotonic()
        while len(self.evidence.done) < len(self._members):
            self._wait(writing=False)

    def _send(self, part: memoryview) -> int:
        try:
            count = self._first.socket.send(part)
        except BlockingIOError:
            return 0
        except OSError:
            self._collect(GRACE_S)
            if not self.evidence.over:
                self.evidence.died.add(1)
            self._fail()
        self._moved = time.monotonic()
        return count

    def _wait(self, *, writing: bool, limit_s: float = TICK_S) -> bool:
        """Wait a moment; whether the first member takes bytes."""
        can_write = self._hear(writing=writing, limit_s=limit_s)
        if self.evidence.over:
            self._collect(GRACE_S)
            self._fail()
        if self._aborted.is_set():
            self._collect(GRACE_S)
            raise SendFailed(f"version {self._version} was given up: {self._reason('aborted')}")
        if time.monotonic() - self._moved > self._limit_s:
            self._examine()
        return can_write

    def _hear(self, *, writing: bool = False, limit_s: float = TICK_S) -> bool:
        waiting = {
            link.fileno(): select.POLLIN for link in self._members.values() if not link.ended
        }
        if writing:
            waiting[self._first.fileno()] = select.POLLOUT
        events = ready(waiting, limit_s)
        for rank, link in self._members.items():
            if not link.ended and link.fileno() in events:
                self._read(rank, link)
        return writing and self._first.fileno() in events

    def _read(self, rank: int, link: MemberLink) -> None:
        facts = self.evidence
        while (message := link.read()) is not None:
            if "done" in message:
                facts.done.add(rank)
                self._moved = time.monotonic()
            if "gave_up" in message:
                facts.gave_up[rank] = str(message["gave_up"])
            if "cut_off" in message:
                facts.cut_off[rank] = str(message["cut_off"])
            if "waits" in message:
                waits = cast(Waits, message["waits"])
                facts.reports[rank] = MemberReport(waits=waits, idle_s=float(message["idle_s"]))
        if link.ended and rank not in facts.gone:
            facts.died.add(rank)

    def _collect(self, seconds: float) -> None:
        """Hear the others out: who was first is not who is heard first."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(not m.ended for m in self._members.values()):
            self._hear()

    def _examine(self) -> None:
        """Ask all what they wait for; return if any of them still makes progress."""
        idle_s = self._ask_all()
        if idle_s > self._limit_s:
            # One that was stopped goes on with its answer before its first byte moves.
            self._collect(MOVE_S)
            idle_s = self._ask_all()
        if idle_s > self._limit_s:
            self._fail()
        self._moved = time.monotonic() - idle_s
        self.evidence.reports.clear()

    def _ask_all(self) -> float:
        """Ask all what they wait for; seconds since any of them made progress, 0 if aborted."""
        facts = self.evidence
        facts.reports.clear()
        asked = self._members.keys() - facts.done
        for rank in asked:
            self._members[rank].say(ask=True)
        deadline = time.monotonic() + ANSWER_S
        # One that has finished or is gone meanwhile owes no answer; all others have the whole time.
        while (silent := asked - facts.reports.keys() - facts.gone) and time.monotonic() < deadline:
            if self._aborted.is_set():
                return 0.0
            self._hear()
        facts.silent = silent
        if facts.over:
            self._collect(GRACE_S)
        if facts.silent or facts.over:
            self._fail()
        return min(facts.idle_s(), time.monotonic() - self._moved)

    def _fail(self) -> None:
        after = time.monotonic() - self._began
        raise SendFailed(
            f"version {self._version} was not sent whole, {after:.1f} s after it began "
            f"(sync.timeout_s: {self._limit_s:g}): {self.evidence.why()}"
        )

    def _reason(self, otherwise: str) -> str:
        return self.evidence.why() if self.evidence.over else otherwise
