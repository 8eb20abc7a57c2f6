"""The process inside a sandbox that runs its commands; standard library only.

One supervisor serves one sandbox for its whole life, so that a command costs two forks instead of a
new set of namespaces. It runs under `python3 -I -S` and speaks the frames of `wire`.

    supervisor (PID 1 of the sandbox, or a child subreaper)
    `-- leader, one per command or session (`command.lead`)
        `-- the program and, whatever it does to hide them, all its descendants

Invariants: a child of the supervisor that is not a leader has lost its leader to a kill, and is
killed; a command is answered only when nothing it started is left; when stdin ends or its lifetime
is over, so is all.
"""

from __future__ import annotations

import errno
import gc
import marshal
import os
import select
import time

from agentrl_sandboxes.guest import disk, files, reset, trees, wire
from agentrl_sandboxes.guest.command import Command, lead
from agentrl_sandboxes.guest.limits import LimitWatch
from agentrl_sandboxes.guest.link import Link
from agentrl_sandboxes.guest.listeners import Listeners
from agentrl_sandboxes.guest.processes import SIGKILL, children, kill_below, send_signal
from agentrl_sandboxes.guest.program import PR_SET_CHILD_SUBREAPER, libc
from agentrl_sandboxes.guest.report import surroundings
from agentrl_sandboxes.guest.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Callable
    from typing import Any


WORK: dict[int, Callable[[bytes, dict[str, Any]], bytes]] = {
    wire.READ: files.read,
    wire.WRITE: files.write,
    wire.PACK: trees.pack,
    wire.FETCH: trees.fetch,
    wire.UNPACK: trees.unpack,
}
"""File work by kind of frame."""


class GuestSupervisor:
    """The event loop: frames in, commands, limits, frames out."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.commands: dict[int, Command] = {}
        self.owners: dict[int, Command] = {}
        self.limits = LimitWatch(config)
        self.modes = reset.modes_of(config)
        # When memory runs out, what programs start is killed before we are. They inherit our score,
        # and a file of /proc that was opened in time can be written whatever we have become.
        self.oom_fd: int = config["oom_fd"]
        self.own_score = os.pread(self.oom_fd, 16, 0).strip()
        self.over_at = time.monotonic() + config["lifetime"]
        self.poll = select.epoll()
        self.link = Link(self.poll)
        self.send = self.link.send
        self.listeners = Listeners(self.poll, self.send)

    def run(self) -> None:
        """Serve until stdin ends, or for as long as a sandbox may live."""
        told = surroundings() if self.config["tell"] else b""
        self.send(wire.READY, 0, told)
        while True:
            for fd, events in self.poll.poll(self.wait_s()):
                if fd == self.link.in_fd:
                    for kind, ident, body in self.link.receive():
                        self.handle(kind, ident, body)
                    if self.link.ended:
                        return
                elif fd == self.link.out_fd:
                    self.link.flush()
                elif fd in self.owners:
                    self.pump(fd)
                elif fd in self.listeners.owners:
                    self.listeners.serve(fd, events)
            now = time.monotonic()
            self.listeners.go_on(now)
            if self.commands:
                self.enforce(now)
            if now >= self.over_at:
                text = b"its lifetime of %d s is over" % self.config["lifetime"]
                self.send(wire.FAILED, 0, wire.ERROR.pack(errno.ETIME) + text)
                return

    def wait_s(self) -> float:
        """Seconds until a limit has to be looked at."""
        now = time.monotonic()
        ends = [self.over_at - now, self.listeners.next_s() - now]
        if self.commands:
            ends.append(self.limits.next_look - now)
        for command in self.commands.values():
            if command.killed_at or command.gone_at:
                ends.append(0.25 if command.waits_for_reader() else 0.005)
            else:
                ends.append(command.deadline - now)
        return max(0.0, min(60.0, *ends)) + 0.0005

    def handle(self, kind: int, ident: int, body: bytes) -> None:
        """Serve one frame of the host; whatever that raises is the answer to it."""
        try:
            request = marshal.loads(body) if body else {}
            if kind == wire.CARRY:
                self.listeners.carry(ident, request)
            elif kind in (wire.CANCEL, wire.END):
                if not self.listeners.close(ident):
                    self.cancel(ident)
            elif kind == wire.LISTEN:
                self.listeners.open(ident)
            elif kind in (wire.EXEC, wire.START):
                self.start(kind, ident, request)
            elif kind in (wire.INPUT, wire.GRANT, wire.INTERRUPT):
                self.talk(kind, ident, request)
            elif kind == wire.RESET:
                self.reset()
                self.send(wire.DATA, ident, b"")
            else:
                self.send(wire.DATA, ident, self.file_work(kind, request))
        except Exception as error:  # the program shapes what a request meets, and must not end us
            # What has no id expects no answer.
            if ident:
                self.send(wire.FAILED, ident, wire.failure(error))

    def pump(self, fd: int) -> None:
        """Move bytes of a command; one that cannot be looked after is ended."""
        command = self.owners[fd]
        try:
            if fd not in command.idle and command.pump(fd):
                self.drop(command, fd)
        except Exception as error:  # as for a frame: it must not end the others
            self.give_up(command, error)

    def give_up(self, command: Command, error: Exception) -> None:
        """Answer a command with our own failure, and end it."""
        if command.reason != wire.CANCELLED:
            self.send(wire.FAILED, command.ident, wire.failure(error))
        command.kill(wire.CANCELLED)
        command.reason = wire.CANCELLED

    def cancel(self, ident: int) -> None:
        """End a command or session, or take back a piece of stdin."""
        command = self.commands.get(ident)
        if command is None:
            for session in self.commands.values():
                if isinstance(session, Session):
                    session.withdraw(ident)
            return
        command.kill(wire.CANCELLED)
        for fd in [fd for fd, name in command.fds.items() if name in ("out", "err")]:
            self.drop(command, fd)

    def talk(self, kind: int, ident: int, request: dict[str, Any]) -> None:
        """Pass a frame of the host to its session; one that is over is sent nothing."""
        session = self.commands.get(request["session"])
        if kind == wire.INPUT:
            if not isinstance(session, Session):
                raise BrokenPipeError(errno.EPIPE, "the program has ended")
            session.take(ident, request["data"])
            return
        if isinstance(session, Session):
            if kind == wire.GRANT:
                session.grant(request["size"])
            else:
                session.interrupt()
        if kind == wire.INTERRUPT:
            self.send(wire.DATA, ident, b"")

    def file_work(self, kind: int, request: dict[str, Any]) -> bytes:
        """Touch files with the rights of the program, also where the supervisor has more."""
        if self.config["watch"] and kind in (wire.WRITE, wire.UNPACK):
            size = len(request["data" if kind == wire.WRITE else "entries"])
            if disk.tree_bytes(self.config["base"]) + size > self.limits.limits["disk"]:
                raise OSError(errno.ENOSPC, "no space left in the sandbox")
        root = os.fsencode(self.config["workdir"])
        uid = self.config["program_uid"]
        if uid is None:
            return WORK[kind](root, request)
        os.setegid(uid)
        os.seteuid(uid)
        try:
            return WORK[kind](root, request)
        finally:
            os.seteuid(0)
            os.setegid(0)

    def start(self, kind: int, ident: int, request: dict[str, Any]) -> None:
        """Fork a leader for a command or a session."""
        if kind == wire.EXEC:
            command = Command(ident, request, self.limits.limits["output"])
        else:
            command = Session(ident, request, self.poll, self.send)
        if not self.commands:
            self.limits.look_at_files([])
            if self.config["watch"] or self.config["places"]:
                self.limits.look_at_disk([])
        command.oom_kills = self.limits.oom_kills()
        pipes: dict[str, tuple[int, int]] = {}
        try:
            for name in command.pipes:
                pipes[name] = os.pipe()
            os.write(self.oom_fd, b"1000")
            command.leader = os.fork()
        except OSError:
            for fd in (fd for pair in pipes.values() for fd in pair):
                os.close(fd)
            raise
        finally:
            # In the leader this is our file as well.
            os.write(self.oom_fd, self.own_score)
        ours = {name: pair[name == "in"] for name, pair in pipes.items()}
        theirs = {name: pair[name != "in"] for name, pair in pipes.items()}
        if not command.leader:
            try:
                # Pipes of other commands too: a copy of another's stdin would keep it from ending.
                # So would one of a connection.
                link = (self.link.in_fd, self.link.out_fd)
                for fd in (*ours.values(), *link, *self.owners, *self.listeners.owners):
                    os.close(fd)
                stdio = (theirs["in"], theirs["out"], theirs.get("err", theirs["out"]))
                leaders = len(self.commands) + 1 + command.spare_leaders
                lead(
                    self.config, request, stdio, theirs["status"], leaders, command.reports_program
                )
            finally:
                # A fork must not go on as a second supervisor.
                os._exit(1)
        for fd in theirs.values():
            os.close(fd)
        self.commands[ident] = command
        for name, fd in ours.items():
            os.set_blocking(fd, False)
            command.fds[fd] = name
            self.owners[fd] = command
            self.poll.register(fd, select.EPOLLOUT if name == "in" else select.EPOLLIN)
        self.limits.next_look = command.start + 0.01
        if kind == wire.START:
            self.send(wire.DATA, ident, b"")

    def drop(self, command: Command, fd: int) -> None:
        """Close a pipe that has ended. The end of the status pipe is the end of the leader."""
        if fd in command.idle:
            command.idle.discard(fd)
        else:
            self.poll.unregister(fd)
        os.close(fd)
        del self.owners[fd]
        if command.fds.pop(fd) == "status":
            command.gone_at = time.monotonic()
            try:
                os.waitpid(command.leader, 0)
            except ChildProcessError:
                return

    def enforce(self, now: float) -> None:
        """Apply limits, kill leftovers, and answer commands that are over."""
        if now >= self.limits.next_look:
            self.look(now)
        for command in list(self.commands.values()):
            if command.killed_at or now >= command.deadline:
                command.kill(wire.TIMEOUT)
            if command.gone_at:
                if command.status is None or command.killed_at:
                    self.end_strays()
                held = [fd for fd, name in command.fds.items() if name != "in"]
                # A process of another command may have been handed a pipe: wait only so long.
                late = now > command.gone_at + 1.0 and not command.waits_for_reader()
                if not held or late:
                    self.finish(command)

    def look(self, now: float) -> None:
        """Look at the limits; where that fails nothing may run, because nothing holds it."""
        try:
            self.limits.look(now, list(self.commands.values()))
        except Exception as error:  # the program shapes what is looked at, and must not end us
            for command in self.commands.values():
                self.give_up(command, error)

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
        self.limits.judge(command)
        for fd in list(command.fds):
            self.drop(command, fd)
        del self.commands[command.ident]
        if not self.commands:
            # They would count against the next command, which has not made them.
            self.limits.remove_ipc()
        command.send_last(self.send)

    def reset(self) -> None:
        """Make the sandbox as good as new, or raise `OSError`."""
        give_up = time.monotonic() + 5.0
        self.listeners.close_all()
        for command in self.commands.values():
            command.kill(wire.CANCELLED)
        while True:
            # As a subreaper we inherit what loses its parent: no children means no processes.
            kill_below(os.getpid())
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                break
            if time.monotonic() > give_up:
                raise OSError(errno.EBUSY, "a process does not end")
            time.sleep(0.001)
        if os.getpid() == 1 and (others := set(filter(str.isdigit, os.listdir("/proc"))) - {"1"}):
            raise OSError(errno.EBUSY, f"processes {sorted(others)} are not below the supervisor")
        for command in list(self.commands.values()):
            if not isinstance(command, Session):
                code = wire.ERROR.pack(errno.ECANCELED)
                self.send(wire.FAILED, command.ident, code + b"the sandbox was reset")
            self.finish(command)
        reset.clean(self.config, self.modes)
        self.limits.disk_seen = self.limits.files_seen = 0
        self.over_at = time.monotonic() + self.config["lifetime"]

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
        config: `limits` (memory, processes, output, disk, open_files), `lifetime` (seconds),
            `base` (writable root), `places` (file systems beside it that can be written to),
            `own_namespaces` (network and System V objects are those of this sandbox alone),
            `keep` (what is mounted in these and is not the program's), `files` (single ones that
            can be written to), `tell` (say what is here, see `report`), `workdir`, `program_uid`
            (None: that of the supervisor), `other_processes` (those of the same user that
            RLIMIT_NPROC would count), `watch` (count disk and processes because the kernel does
            not), `cgroup` (that of `/sys/fs/cgroup` is ours alone), `group` (open files of one that
            the host has made for us, or None), `inodes` (how many the tmpfs at `base` and `places`
            may have; 0: nobody counts), `nice` (of programs), `remove` (delete `base` at the
            end), `oom_fd` (our `oom_score_adj`, open).
    """
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Forks share pages with us until someone writes; the collector would write to all of them.
    gc.disable()
    gc.freeze()
    supervisor = GuestSupervisor(config)
    try:
        supervisor.run()
    finally:
        supervisor.end()
        if config["program_uid"] is not None:
            for kind in reset.IPC:
                reset.remove_ipc(kind, config["program_uid"])
            # The next sandbox would find it, with what this one was shown.
            disk.wipe_shared(config["program_uid"])
        if config["remove"]:
            disk.wipe(config["base"])
