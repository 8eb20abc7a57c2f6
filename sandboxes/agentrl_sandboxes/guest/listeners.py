"""Ports inside the sandbox whose connections the host answers, carried as frames of the wire.

A program connects to the loopback as to any server. Nothing of the host can be reached by it but
the one handler behind the port.

Invariants: a connection has at most `wire.WINDOW` bytes in memory here, and a listener at most
`wire.CONNECTIONS` connections; a socket is in the poll only for what can be done with it, because
the poll is level-triggered.
"""

from __future__ import annotations

import _socket  # `socket` imports `enum` and `selectors`
import errno
import select
import time
from collections import deque

from agentrl_sandboxes.guest import wire

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than all the rest of this takes to run
    from collections.abc import Callable
    from typing import Any

PIECE = 65536
BUFFER = 2**17
"""Bytes in the kernel for each direction of a connection, as a wish."""
BACKLOG = 128
"""Connections that wait to be accepted."""
PAUSE_S = 0.1
"""Time for which no connection is taken when the kernel has no room for one more, or `BURST` were
taken in less than this."""
BURST = 32
"""Connections in a row; each costs the host more than the program."""
NEVER = float("inf")
TROUBLE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listeners:
    """All listeners of a sandbox, and their connections."""

    def __init__(self, poll: select.epoll, send: Callable[[int, int, bytes], None]) -> None:
        self.poll = poll
        self.send = send
        self.by_ident: dict[int, Listener] = {}
        self.owners: dict[int, Listener] = {}
        """By descriptor, of everything that is in the poll or may be."""

    def open(self, ident: int) -> None:
        """Listen at a free port of the loopback; answers with its number."""
        listener = Listener(ident, self)
        self.by_ident[ident] = listener
        port = listener.socket.getsockname()[1]
        self.send(wire.DATA, ident, wire.COUNT.pack(port))

    def carry(self, ident: int, request: dict[str, Any]) -> None:
        """Apply an event of the host; one of a connection that has ended means nothing."""
        listener = self.by_ident.get(ident)
        connection = listener and listener.connections.get(request["connection"])
        if connection:
            connection.apply(request["event"], request["data"])

    def close(self, ident: int) -> bool:
        """Close a listener with its connections; False where there is none of this id."""
        listener = self.by_ident.pop(ident, None)
        if listener is None:
            return False
        listener.close()
        self.send(wire.RESULT, ident, b"")
        return True

    def close_all(self) -> None:
        """Close every listener with its connections."""
        for ident in list(self.by_ident):
            self.close(ident)

    def serve(self, fd: int, events: int) -> None:
        """Do what the poll allows."""
        listener = self.owners[fd]
        if fd == listener.fd:
            listener.accept()
            return
        connection = listener.by_fd[fd]
        try:
            connection.serve(events)
        except Exception:  # the program shapes what a socket meets, and must not end us
            connection.drop(errno.EIO)

    def next_s(self) -> float:
        """The earliest end of a pause of a listener; infinity if none pauses."""
        return min((it.paused_until for it in self.by_ident.values()), default=NEVER)

    def go_on(self, now: float) -> None:
        """Listen again where the pause is over."""
        for listener in self.by_ident.values():
            if now >= listener.paused_until:
                listener.paused_until = NEVER
                listener.update()


class Listener:
    """One port, and the connections to it."""

    def __init__(self, ident: int, owner: Listeners) -> None:
        self.ident = ident
        self.owner = owner
        self.connections: dict[int, GuestConnection] = {}
        self.by_fd: dict[int, GuestConnection] = {}
        self.paused_until = NEVER
        self.burst_since = 0.0
        self.burst = 0
        self.last = 0
        self.listening = False
        self.socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            for option in (_socket.SO_RCVBUF, _socket.SO_SNDBUF):
                # Connections inherit them, so that what nobody reads takes little memory.
                self.socket.setsockopt(_socket.SOL_SOCKET, option, BUFFER)
            self.socket.bind(("127.0.0.1", 0))
            self.socket.listen(BACKLOG)
            self.socket.setblocking(False)
        except OSError:
            self.socket.close()
            raise
        self.fd = self.socket.fileno()
        owner.owners[self.fd] = self
        self.update()

    def update(self) -> None:
        """Be in the poll if one more connection can be taken."""
        free = len(self.connections) < wire.CONNECTIONS and self.paused_until == NEVER
        if free != self.listening:
            self.listening = free
            if free:
                self.owner.poll.register(self.fd, select.EPOLLIN)
            else:
                self.owner.poll.unregister(self.fd)

    def accept(self) -> None:
        """Take one connection; the rest wait for the next round, so that others get their turn."""
        now = time.monotonic()
        if now > self.burst_since + PAUSE_S:
            self.burst_since, self.burst = now, 0
        self.burst += 1
        full = self.burst >= BURST
        try:
            fd, _ = self.socket._accept()  # type: ignore[attr-defined]
            self.last += 1
            GuestConnection(_socket.socket(fileno=fd), self.last, self)
        except OSError as error:
            # Any other is about a connection that has ended already, or has yet to come.
            full = full or error.errno in TROUBLE
        if full:
            self.paused_until = now + PAUSE_S
        self.update()

    def close(self) -> None:
        """Close the port and all connections."""
        for connection in list(self.connections.values()):
            connection.drop(errno.ECONNABORTED)
        if self.listening:
            self.owner.poll.unregister(self.fd)
        del self.owner.owners[self.fd]
        self.socket.close()

    def tell(self, number: int, event: int, data: bytes = b"") -> None:
        """Send an event to the host."""
        self.owner.send(wire.CARRIED, self.ident, wire.EVENT.pack(number, event) + data)


class GuestConnection:
    """One connection of a program, between its socket and the host."""

    def __init__(self, socket: _socket.socket, number: int, listener: Listener) -> None:
        socket.setblocking(False)
        socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self.socket = socket
        self.fd = socket.fileno()
        self.number = number
        self.listener = listener
        self.credit = wire.WINDOW
        self.queue: deque[memoryview] = deque()
        self.mask = 0
        self.reading = True
        self.finishing = False
        self.finished = False
        listener.connections[number] = self
        listener.by_fd[self.fd] = self
        listener.owner.owners[self.fd] = listener
        listener.tell(number, wire.OPENED)
        self.update()

    def apply(self, event: int, data: bytes) -> None:
        """Apply an event of the host."""
        if event == wire.BYTES:
            self.queue.append(memoryview(data))
            self.write()
        elif event == wire.ROOM:
            self.credit += wire.COUNT.unpack(data)[0]
            self.update()
        elif event == wire.ABORT:
            self.drop(errno.ECONNABORTED)
        else:
            # After `OVER` nobody wants to hear what the program says.
            self.reading = self.reading and event != wire.OVER
            self.finishing = True
            self.write()

    def serve(self, events: int) -> None:
        """Move bytes as far as the poll allows."""
        if events & select.EPOLLERR:
            number = self.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
            self.drop(number or errno.ECONNRESET)
            return
        if events & select.EPOLLOUT:
            self.write()
        if events & (select.EPOLLIN | select.EPOLLHUP) and self.fd in self.listener.by_fd:
            self.read()

    def read(self) -> None:
        """Send the host the program's bytes, as far as it has room."""
        if not (self.reading and self.credit):
            self.update()
            return
        try:
            data = self.socket.recv(min(PIECE, self.credit))
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(error.errno or errno.ECONNRESET)
            return
        self.credit -= len(data)
        if data:
            self.listener.tell(self.number, wire.BYTES, data)
        else:
            self.reading = False
            self.listener.tell(self.number, wire.FINISHED)
        self.update()

    def write(self) -> None:
        """Give the program what it takes."""
        taken = 0
        try:
            while self.queue:
                size = self.socket.send(self.queue[0])
                taken += size
                if size < len(self.queue[0]):
                    self.queue[0] = self.queue[0][size:]
                else:
                    self.queue.popleft()
            if self.finishing and not self.finished:
                self.finished = True
                self.socket.shutdown(_socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as error:
            self.drop(error.errno or errno.ECONNRESET)
            return
        if taken:
            self.listener.tell(self.number, wire.ROOM, wire.COUNT.pack(taken))
        self.update()

    def update(self) -> None:
        """End if both directions have, else be in the poll for what can be done."""
        if self.finished and not self.reading:
            self.drop(0)
            return
        mask = select.EPOLLIN if self.reading and self.credit else 0
        mask |= select.EPOLLOUT if self.queue else 0
        if mask == self.mask:
            return
        poll = self.listener.owner.poll
        if not mask:
            poll.unregister(self.fd)
        elif self.mask:
            poll.modify(self.fd, mask)
        else:
            poll.register(self.fd, mask)
        self.mask = mask

    def drop(self, number: int) -> None:
        """Close it, and tell the host why: an errno, or 0 for its natural end."""
        listener = self.listener
        if listener.connections.get(self.number) is not self:
            return
        if self.mask:
            listener.owner.poll.unregister(self.fd)
        del listener.connections[self.number], listener.by_fd[self.fd]
        del listener.owner.owners[self.fd]
        self.socket.close()
        listener.tell(self.number, wire.OVER, wire.COUNT.pack(number))
        listener.update()
