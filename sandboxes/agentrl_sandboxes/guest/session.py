"""One program that stays while the host talks to it; all of it that a command does not have."""

from __future__ import annotations

import errno
import os
import time
from collections import deque

from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.guest.command import Command
from agentrl_sandboxes.guest.processes import SIGINT, descendants, ignores, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    import select
    from collections.abc import Callable
    from typing import Any

CHUNK = 65536


class Session(Command):
    """A command without a deadline, with one stream of output and stdin that comes in pieces.

    Invariant: a pipe is in the poll only while there is something to do with it: the output while
    the host allows more bytes, stdin while there are bytes to write. Both are level-triggered, so
    anything else would spin.
    """

    pipes = ("in", "out", "status")
    spare_leaders = 8
    reports_program = True

    def __init__(
        self,
        ident: int,
        request: dict[str, Any],
        poll: select.epoll,
        send: Callable[[int, int, bytes], None],
    ) -> None:
        super().__init__(ident, {**request, "stdin": b"", "timeout": float("inf")}, 0)
        self.credit: int = request["credit"]
        self.inputs: deque[tuple[int, memoryview]] = deque()
        self.poll = poll
        self.send = send

    def waits_for_reader(self) -> bool:
        """True if there may be output that the host has not allowed yet."""
        return not self.credit and "out" in self.fds.values()

    def pump(self, fd: int) -> bool:
        """Move bytes; True when the pipe has ended."""
        name = self.fds[fd]
        if name == "in":
            return self.write(fd)
        if name == "status":
            return super().pump(fd)
        try:
            data = os.read(fd, min(CHUNK, self.credit))
        except BlockingIOError:
            return False
        self.credit -= len(data)
        if data:
            self.send(wire.OUTPUT, self.ident, data)
            if not self.credit:
                self.pause(fd)
        return not data

    def grant(self, size: int) -> None:
        """The host takes `size` bytes more."""
        self.credit += size
        if self.gone_at:
            # What is still in the pipe gets its time from now on.
            self.gone_at = time.monotonic()
        for fd in [fd for fd in self.idle if self.fds[fd] == "out"]:
            self.resume(fd)

    def take(self, ident: int, data: bytes) -> None:
        """Queue a piece of stdin; answered when the program has it."""
        fd = self.stdin_fd()
        if fd is None:
            raise BrokenPipeError(errno.EPIPE, "the program has ended or closed its stdin")
        self.inputs.append((ident, memoryview(data)))
        if fd in self.idle:
            self.resume(fd)

    def withdraw(self, ident: int) -> None:
        """Forget what is left of a piece of stdin, if it is one of ours."""
        self.inputs = deque(item for item in self.inputs if item[0] != ident)

    def write(self, fd: int) -> bool:
        """Give the program what it takes of its stdin; True when it takes no more."""
        try:
            while self.inputs:
                ident, rest = self.inputs[0]
                rest = rest[os.write(fd, rest[:CHUNK]) :] if rest else rest
                if rest:
                    self.inputs[0] = (ident, rest)
                else:
                    self.inputs.popleft()
                    self.send(wire.DATA, ident, b"")
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self.refuse_inputs()
            return True
        self.pause(fd)
        return False

    def refuse_inputs(self) -> None:
        """Fail the writes that wait: the program will not read them."""
        for ident, _ in self.inputs:
            message = wire.ERROR.pack(errno.EPIPE) + b"the program has ended or closed its stdin"
            self.send(wire.FAILED, ident, message)
        self.inputs.clear()

    def interrupt(self) -> None:
        """SIGINT for what the program runs, or for the program itself if it runs nothing.

        A shell puts what it runs in the background out of reach by ignoring SIGINT there, so what
        ignores it does not count.
        """
        if self.status is None and not self.gone_at and self.program:
            below = [pid for pid in descendants(self.program) if not ignores(pid, SIGINT)]
            for pid in below or [self.program]:
                send_signal(pid, SIGINT)

    def stdin_fd(self) -> int | None:
        """The pipe to its stdin, as long as it is open."""
        return next((fd for fd, name in self.fds.items() if name == "in"), None)

    def pause(self, fd: int) -> None:
        """Take a pipe out of the poll."""
        if fd not in self.idle:
            self.idle.add(fd)
            self.poll.unregister(fd)

    def resume(self, fd: int) -> None:
        """Put a pipe back into the poll."""
        self.idle.discard(fd)
        self.poll.register(fd, 4 if self.fds[fd] == "in" else 1)  # EPOLLOUT, EPOLLIN

    def send_last(self, send: Callable[[int, int, bytes], None]) -> None:
        """Send the end and its reason to the host."""
        self.refuse_inputs()
        head = wire.DONE.pack(self.reason, self.end(), self.duration(), 0, 0, 0, 0, 0, 0)
        send(wire.RESULT, self.ident, head)
