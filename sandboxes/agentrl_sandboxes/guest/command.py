"""One command: its leader process, its pipes, and how it ends."""

from __future__ import annotations

import os
import struct
import time

from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.guest.capture import Capture
from agentrl_sandboxes.guest.processes import SIGCONT, SIGKILL, kill_below, send_signal
from agentrl_sandboxes.guest.program import PR_SET_CHILD_SUBREAPER, libc, start_program

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Callable
    from typing import Any, NoReturn


class Command:
    """One running command: its leader, pipes, deadline and why it is over."""

    pipes = ("in", "out", "err", "status")
    """What is between us and the leader."""
    spare_leaders = 0
    """How many leaders may come after this one while it runs; see `limit`."""
    reports_program = False
    """Whether the leader reports first which process the program is."""

    def __init__(self, ident: int, request: dict[str, Any], keep: int) -> None:
        self.ident = ident
        self.stdin = memoryview(request["stdin"])
        self.start = time.monotonic()
        self.deadline = self.start + request["timeout"]
        self.seconds = 0.0
        self.captures = (Capture(keep), Capture(keep))
        self.keep = keep
        self.leader = 0
        self.program = 0
        self.oom_kills = 0
        self.status: int | None = None
        self.reason = wire.ENDED
        self.killed_at = 0.0
        self.gone_at = 0.0
        self.fds: dict[int, str] = {}
        self.idle: set[int] = set()

    def pump(self, fd: int) -> bool:
        """Move bytes between a pipe of the command and memory; True when the pipe has ended."""
        name = self.fds[fd]
        try:
            if name == "in":
                if self.stdin:
                    self.stdin = self.stdin[os.write(fd, self.stdin[:65536]) :]
                return not self.stdin
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        if name == "status":
            self.report(data)
        else:
            capture = self.captures[name == "err"]
            capture.add(data)
            if capture.total > wire.FLOOD * self.keep:
                self.kill(wire.FLOODED)
        return not data

    def report(self, data: bytes) -> None:
        """Take the leader's report: the program's id, if it is asked to, and its wait status."""
        if self.reports_program and not self.program and data:
            self.program = struct.unpack(">i", data[:4])[0]
            data = data[4:]
        if data:
            self.status = struct.unpack(">i", data[:4])[0]
            self.seconds = time.monotonic() - self.start

    def kill(self, reason: int) -> None:
        """End it; called again until it is gone. The first reason is the one reported."""
        now = time.monotonic()
        if not self.killed_at:
            self.killed_at = now
            # A command that has ended by itself is only being cleaned up.
            self.reason = self.reason if self.status is not None else reason
        if self.gone_at:
            return
        kill_below(self.leader)
        # The program may have stopped its leader; one that does not come back is killed as well.
        send_signal(self.leader, SIGKILL if now > self.killed_at + 1.0 else SIGCONT)

    def waits_for_reader(self) -> bool:
        """True if the host has to take output before more can come."""
        return False

    def send_last(self, send: Callable[[int, int, bytes], None]) -> None:
        """Send the result to the host; a cancelled command sends none."""
        if self.reason != wire.CANCELLED:
            send(wire.RESULT, self.ident, self.answer())

    def end(self) -> int:
        """The wait status; without one the program has killed its own leader."""
        return SIGKILL if self.status is None else self.status

    def duration(self) -> float:
        """Wall seconds that the command ran."""
        return self.seconds or time.monotonic() - self.start

    def answer(self) -> bytes:
        """The body of the `RESULT` frame."""
        out, err = (capture.parts() for capture in self.captures)
        parts = (out[0], out[1], err[0], err[1])
        head = wire.DONE.pack(
            self.reason, self.end(), self.duration(), out[2], err[2], *map(len, parts)
        )
        return head + b"".join(parts)


def lead(
    config: dict[str, Any],
    request: dict[str, Any],
    stdio: tuple[int, int, int],
    status_fd: int,
    leaders: int,
    reports_program: bool,
) -> NoReturn:
    """The leader's life: start the program, report its end, then end all it left behind.

    As a child subreaper it inherits every orphan below it, so "no children left" means that
    nothing is left. `leaders` is how many leaders there are; they count as processes.
    """
    code = 1
    try:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        program = start_program(config, request, stdio, leaders)
        if reports_program:
            os.write(status_fd, struct.pack(">i", program))
        # The first three are copies of them, or of nothing.
        for fd in {0, 1, 2, *stdio}:
            os.close(fd)
        pid = 0
        while pid != program:
            pid, status = os.waitpid(-1, 0)
        os.write(status_fd, struct.pack(">i", status))
        # Most commands leave nothing behind, and then this raises at once.
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                kill_below(os.getpid())
                os.waitpid(-1, 0)
    except ChildProcessError:
        code = 0
    finally:
        os._exit(code)
