"""The process inside a sandbox that runs its commands; standard library only.

One supervisor serves one sandbox for its whole life, so that a command costs two forks instead of a
new set of namespaces. It runs under `python3 -I -S` and speaks the frames of `wire`.

    supervisor (PID 1 of the sandbox, or a child subreaper)
    `-- leader, one per command (`command.lead`)
        `-- the command and, whatever it does to hide them, all its descendants

Invariants: a child of the supervisor that is not a leader has lost its leader to a kill, and is
killed; a command is answered only when nothing it started is left; when stdin ends, so does all.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import select
import struct
import time

from agentrl_sandboxes.guest import files, wire
from agentrl_sandboxes.guest.command import PR_SET_CHILD_SUBREAPER, Command, lead, libc
from agentrl_sandboxes.guest.processes import (
    SIGKILL,
    children,
    descendants,
    kill_below,
    memory_of,
    send_signal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from typing import Any


class Supervisor:
    """The event loop: frames in, commands, limits, frames out."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.limits: dict[str, int] = config["limits"]
        self.commands: dict[int, Command] = {}
        self.owners: dict[int, Command] = {}
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.blocked = False
        self.poll = select.epoll()
        self.next_look = 0.0
        self.next_disk_look = 0.0
        self.disk_seen = 0
        self.in_fd, self.out_fd = os.dup(0), os.dup(1)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.set_blocking(self.in_fd, False)
        os.set_blocking(self.out_fd, False)
        self.poll.register(self.in_fd, select.EPOLLIN)

    def run(self) -> None:
        """Serve until stdin ends."""
        self.send(wire.READY, 0, b"")
        while True:
            for fd, _ in self.poll.poll(self.wait_s()):
                if fd == self.in_fd:
                    if not self.receive():
                        return
                elif fd == self.out_fd:
                    self.flush()
                elif fd in self.owners:
                    self.pump(self.owners[fd], fd)
            if self.commands:
                self.enforce(time.monotonic())

    def wait_s(self) -> float | None:
        """Seconds until a limit has to be looked at."""
        if not self.commands:
            return None
        now = time.monotonic()
        ends = [self.next_look - now]
        for command in self.commands.values():
            ending = command.killed_at or command.gone_at
            ends.append(0.005 if ending else command.deadline - now)
        return max(0.0, min(ends)) + 0.0005

    def send(self, kind: int, ident: int, body: bytes) -> None:
        """Queue a frame and write what the host will take."""
        self.outgoing += wire.HEAD.pack(len(body), kind, ident) + body
        self.flush()

    def flush(self) -> None:
        """Never blocks: a host that does not read must not stop the limits."""
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.out_fd, self.outgoing[: 2**20])]
        except BlockingIOError:
            pass
        except OSError:
            # The host is gone; end of file on stdin follows.
            self.outgoing.clear()
        if bool(self.outgoing) != self.blocked:
            self.blocked = not self.blocked
            if self.blocked:
                self.poll.register(self.out_fd, select.EPOLLOUT)
            else:
                self.poll.unregister(self.out_fd)

    def receive(self) -> bool:
        """Take what has come; False at end of file."""
        try:
            data = os.read(self.in_fd, 2**20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.incoming += data
        while len(self.incoming) >= wire.HEAD.size:
            size, kind, ident = wire.HEAD.unpack_from(self.incoming)
            end = wire.HEAD.size + size
            if len(self.incoming) < end:
                break
            body = bytes(memoryview(self.incoming)[wire.HEAD.size : end])
            del self.incoming[:end]
            self.handle(kind, ident, body)
        return bool(data)

    def handle(self, kind: int, ident: int, body: bytes) -> None:
        """Serve one frame; every request but `CANCEL` is answered once."""
        request = marshal.loads(body) if body else {}
        try:
            if kind == wire.CANCEL:
                if ident in self.commands:
                    self.commands[ident].kill(wire.CANCELLED)
            elif kind == wire.EXEC:
                self.start(ident, request)
            else:
                self.send(wire.DATA, ident, self.file_work(kind, request))
        except OSError as error:
            message = (error.strerror or str(error)).encode("utf-8", "replace")
            code = wire.ERROR.pack(error.errno or errno.EIO)
            self.send(wire.FAILED, ident, code + message)

    def file_work(self, kind: int, request: dict[str, Any]) -> bytes:
        """Touch files with the rights of the program, also where the supervisor has more."""
        if self.config["watch"] and kind in (wire.WRITE, wire.UNPACK):
            size = len(request["data" if kind == wire.WRITE else "entries"])
            if files.tree_bytes(self.config["base"]) + size > self.limits["disk"]:
                raise OSError(errno.ENOSPC, "no space left in the sandbox")
        root = os.fsencode(self.config["workdir"])
        uid = self.config["program_uid"]
        if uid is None:
            return files.WORK[kind](root, request)
        os.setegid(uid)
        os.seteuid(uid)
        try:
            return files.WORK[kind](root, request)
        finally:
            os.seteuid(0)
            os.setegid(0)

    def start(self, ident: int, request: dict[str, Any]) -> None:
        """Fork a leader for a command."""
        command = Command(ident, request, self.limits["output"])
        if self.config["watch"] and not self.commands:
            self.look_at_disk([])
        pipes = [os.pipe() for _ in range(4)]
        try:
            command.leader = os.fork()
        except OSError:
            for fd in (fd for pair in pipes for fd in pair):
                os.close(fd)
            raise
        (in_r, in_w), (out_r, out_w), (err_r, err_w), (status_r, status_w) = pipes
        if not command.leader:
            # Pipes of other commands too: a copy of another's stdin would keep it from ending.
            for fd in (in_w, out_r, err_r, status_r, self.in_fd, self.out_fd, *self.owners):
                os.close(fd)
            leaders = len(self.commands) + 1
            lead(self.config, request, (in_r, out_w, err_w), status_w, leaders)
        for fd in (in_r, out_w, err_w, status_w):
            os.close(fd)
        self.commands[ident] = command
        for fd, name in ((out_r, "out"), (err_r, "err"), (status_r, "status"), (in_w, "in")):
            os.set_blocking(fd, False)
            command.fds[fd] = name
            self.owners[fd] = command
            self.poll.register(fd, select.EPOLLOUT if name == "in" else select.EPOLLIN)
        self.next_look = command.start + 0.01

    def pump(self, command: Command, fd: int) -> None:
        """Move bytes between a pipe of a command and memory."""
        name = command.fds[fd]
        data = b""
        try:
            if name == "in":
                if command.stdin:
                    command.stdin = command.stdin[os.write(fd, command.stdin[:65536]) :]
                if command.stdin:
                    return
            else:
                data = os.read(fd, 65536)
        except BlockingIOError:
            return
        except BrokenPipeError:
            data = b""
        if not data:
            self.drop(command, fd)
        elif name == "status":
            command.status = struct.unpack(">i", data[:4])[0]
            command.seconds = time.monotonic() - command.start
        else:
            capture = command.captures[name == "err"]
            capture.add(data)
            if capture.total > wire.FLOOD * self.limits["output"]:
                command.kill(wire.OUTPUT)

    def drop(self, command: Command, fd: int) -> None:
        """Close a pipe that has ended. The end of the status pipe is the end of the leader."""
        self.poll.unregister(fd)
        os.close(fd)
        del self.owners[fd]
        if command.fds.pop(fd) == "status":
            command.gone_at = time.monotonic()
            os.waitpid(command.leader, 0)

    def enforce(self, now: float) -> None:
        """Apply limits, kill leftovers, and answer commands that are over."""
        if now >= self.next_look:
            self.look(now)
        for command in list(self.commands.values()):
            if command.killed_at or now >= command.deadline:
                command.kill(wire.TIMEOUT)
            if command.gone_at:
                if command.status is None or command.killed_at:
                    self.end_strays()
                held = [fd for fd, name in command.fds.items() if name != "in"]
                # A process of another command may have been handed a pipe: wait only so long.
                if not held or now > command.gone_at + 1.0:
                    self.finish(command)

    def end_strays(self) -> None:
        """Kill and reap processes whose leader was killed."""
        while True:
            leaders = {c.leader for c in self.commands.values() if not c.gone_at}
            strays = set(children(os.getpid())) - leaders
            if not strays:
                return
            for stray in strays:
                kill_below(stray)
                send_signal(stray, SIGKILL)
                os.waitpid(stray, 0)

    def finish(self, command: Command) -> None:
        """Answer a command and forget it."""
        for fd in list(command.fds):
            self.drop(command, fd)
        del self.commands[command.ident]
        if command.reason != wire.CANCELLED:
            self.send(wire.RESULT, command.ident, command.answer())

    def look(self, now: float) -> None:
        """Check memory, processes and disk of all commands together; end the largest command."""
        running = [c for c in self.commands.values() if not (c.killed_at or c.gone_at)]
        trees = {c.ident: descendants(c.leader) for c in running}
        if running and sum(map(len, trees.values())) > self.limits["processes"]:
            # First, because a bomb grows while its memory is counted.
            max(running, key=lambda c: len(trees[c.ident])).kill(wire.PROCESSES)
            self.next_look = now
            return
        most = self.limits["memory"]
        used = {c.ident: memory_of(trees[c.ident], most) for c in running}
        left = most - sum(used.values())
        if running and left < 0:
            max(running, key=lambda c: used[c.ident]).kill(wire.OOM)
        # Memory fills at some 4 GB/s at most, so a look can wait until it could have run out.
        gap = min(0.25, max(0.01, left / 4e9))
        if self.config["watch"]:
            # A fork bomb makes some hundred processes in this time.
            gap = min(gap, 0.015)
            if now >= self.next_disk_look:
                self.next_disk_look = now + 0.1 + 10 * self.look_at_disk(running)
        self.next_look = now + gap

    def look_at_disk(self, running: list[Command]) -> float:
        """End commands that write to a disk that is full; one that frees it may go on.

        Returns how long looking took in seconds, because it should not be done all the time.
        """
        start = time.monotonic()
        used = files.tree_bytes(self.config["base"])
        for command in running if used > max(self.limits["disk"], self.disk_seen) else ():
            command.kill(wire.DISK)
        self.disk_seen = used
        return time.monotonic() - start

    def end(self) -> None:
        """Kill everything. As PID 1 the kernel does it at our exit, and more surely."""
        while os.getpid() != 1:
            kill_below(os.getpid())
            try:
                while True:
                    os.waitpid(-1, 0)
            except ChildProcessError:
                break


def main(config: dict[str, Any]) -> None:
    """Serve the sandbox that `config` describes, then leave nothing behind.

    Args:
        config: `limits` (memory, processes, output, disk, open_files), `base` (writable root),
            `workdir`, `program_uid` (None: that of the supervisor), `other_processes` (those of
            the same user that RLIMIT_NPROC would count), `watch` (count disk and processes because
            the kernel does not), `remove` (delete `base` at the end).
    """
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Forks share pages with us until someone writes; the collector would write to all of them.
    gc.disable()
    gc.freeze()
    supervisor = Supervisor(config)
    try:
        supervisor.run()
    finally:
        supervisor.end()
        if config["remove"]:
            files.wipe(config["base"])
