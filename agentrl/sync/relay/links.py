"""Connections between the members of a relay, and the small messages that go over them.

A message is its length in four bytes and a JSON object. It is read byte by byte as far as it goes,
so whatever follows it on the connection is still there for the next reader. No socket here ever
blocks: members wait for at most `TICK_S` at a time, so another thread can always end a wait.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import orjson

from agentrl.errors import SyncError
from agentrl.sync.transfer import MemberLost

logger = logging.getLogger(__name__)

TICK_S = 0.05
"""Longest wait in one call, in seconds."""
CONNECT_LIMIT_S = 10.0
"""Seconds until a host must accept a connection."""
MESSAGE_BYTES = 1 << 16
"""Longest message."""
STRANGERS = 64
"""Connections, beside those of all members, that may wait for their first message."""
_LENGTH = struct.Struct("<I")


class MemberLink:
    """A connection to another member, for messages."""

    def __init__(self, connection: socket.socket) -> None:
        """Own a connected socket, which `close` closes."""
        self.socket = connection
        """Not blocking."""
        self.ended = False
        """The other side has closed it, or is gone."""
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._part = bytearray()

    def fileno(self) -> int:
        """Number of the open file, for `poll`."""
        return self.socket.fileno()

    def say(self, **message: Any) -> None:
        """Send a message, unless the other side is gone, which the next `read` notices.

        That one also reads what the other side said before it went. Messages are few and far
        smaller than the buffer of a connection.
        """
        text = orjson.dumps(message)
        data = _LENGTH.pack(len(text)) + text
        with contextlib.suppress(OSError):
            if self.socket.send(data) < len(data):
                self.socket.shutdown(socket.SHUT_WR)  # nothing can follow half a message

    def read(self) -> Mapping[str, Any] | None:
        """The next message if all of it has come; None if not, or if the link has `ended`."""
        while not self.ended:
            want = self._missing()
            if want == 0:
                text, self._part = self._part[_LENGTH.size :], bytearray()
                return self._decode(text)
            try:
                data = self.socket.recv(want)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            self._part += data
            self.ended = not data
        return None

    def _missing(self) -> int:
        """Bytes to the end of the length, or of the message."""
        have = len(self._part)
        if have < _LENGTH.size:
            return _LENGTH.size - have
        (size,) = _LENGTH.unpack_from(self._part)
        if size > MESSAGE_BYTES:
            self.ended = True
            return 1
        return _LENGTH.size + size - have

    def _decode(self, text: bytearray) -> Mapping[str, Any] | None:
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError:
            message = None
        if isinstance(message, dict):
            return message
        self.ended = True  # no member writes this
        return None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.ended = True
        self.socket.close()


def open_listener(host: str) -> socket.socket:
    """Listen at one address of this host, at a free port.

    Raises:
        SyncError: the address is not of this host.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise SyncError(f"cannot listen for members of the relay at {host}: {error}") from error
    listener.setblocking(False)
    return listener


def reach(
    host: str, port: int, *, who: str, timeout_s: float, check: Callable[[], object] | None = None
) -> MemberLink:
    """Connect to another member.

    Args:
        host: of the member, an address or a name.
        port: of the member.
        who: it is, for the error.
        timeout_s: seconds it may take, if they are fewer than `CONNECT_LIMIT_S`.
        check: called all the time; raises to end the wait.

    Raises:
        MemberLost: it does not accept the connection.
    """
    deadline = time.monotonic() + min(timeout_s, CONNECT_LIMIT_S)
    why: OSError | None = None
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            link = MemberLink(socket.socket(family, socket.SOCK_STREAM))
            try:
                _connect(link.socket, address, deadline, check)
            except BaseException as error:
                link.close()
                if not isinstance(error, OSError):
                    raise
                why = error
            else:
                return link
    except OSError as error:  # there is no such host
        why = error
    raise MemberLost(f"cannot reach {who} at {host}:{port}: {why}") from why


def _connect(
    connection: socket.socket, address: Any, deadline: float, check: Callable[[], object] | None
) -> None:
    code = connection.connect_ex(address)
    while code == errno.EINPROGRESS:
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
        if ready({connection.fileno(): select.POLLOUT}):
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def answer_sender(control: MemberLink, *, waits: str, idle_s: float) -> bool:
    """In a receiver: answer the sender's questions, and end when it ends the sync.

    Args:
        control: link to the sender.
        waits: as `agentrl.sync.relay.evidence.MemberReport.waits`.
        idle_s: seconds without a byte.

    Returns:
        True if the sender has said that it has nothing to send yet.

    Raises:
        MemberLost: the sync has ended, or the sender is gone.
    """
    alive = False
    while (message := control.read()) is not None:
        alive = alive or "alive" in message
        if "ask" in message:
            control.say(waits=waits, idle_s=idle_s)
        if "end" in message:
            raise MemberLost(str(message["end"]))
    if control.ended:
        raise MemberLost("the sender of the weights is gone, or has left the sync")
    return alive


def reason_of(error: BaseException) -> str:
    """Text of an error, as a message can carry it."""
    if isinstance(error, GeneratorExit):
        return "its engine takes no more weights"
    return (str(error) or repr(error))[:1000].encode(errors="replace").decode()


def ready(waiting: Mapping[int, int], limit_s: float = TICK_S) -> dict[int, int]:
    """Events of open files within the limit: those that can be read or written, by number."""
    poller = select.poll()
    for number, events in waiting.items():
        poller.register(number, events)
    return dict(poller.poll(limit_s * 1e3))


def is_member(message: Mapping[str, Any], group: Mapping[str, Any], version: int) -> bool:
    """Compare the first message of a connection with the token and epoch of the group."""
    token = str(message.get("token", ""))
    same = hmac.compare_digest(token.encode(), str(group["token"]).encode())
    return same and (message.get("epoch"), message.get("version")) == (group["epoch"], version)


def accept_members(
    listener: socket.socket,
    ranks: Collection[int],
    admit: Callable[[Mapping[str, Any]], bool],
    *,
    timeout_s: float,
    check: Callable[[], object],
    hear: Callable[[int, Mapping[str, Any]], None] | None = None,
) -> dict[int, tuple[MemberLink, Mapping[str, Any]]]:
    """Accept the connections of members; any other connection is turned away and delays nothing.

    Args:
        listener: takes the connections.
        ranks: those that are expected.
        admit: says whether a first message is that of a member; it names its `rank`.
        timeout_s: seconds to wait for all.
        check: called all the time; raises to end the wait.
        hear: called with the rank and message of a member that says more before all have come.

    Returns:
        Connection and first message of each rank that came in time.
    """
    came: dict[int, tuple[MemberLink, Mapping[str, Any]]] = {}
    unknown: list[MemberLink] = []
    deadline = time.monotonic() + timeout_s
    try:
        while len(came) < len(ranks) and time.monotonic() < deadline:
            check()
            links = [*unknown, *(link for link, _ in came.values())]
            events = ready({n: select.POLLIN for n in (listener.fileno(), *_numbers(links))})
            # Before new ones are admitted: what follows a first message is for the caller.
            for rank, (link, _) in list(came.items()):
                message = link.read() if link.fileno() in events else None
                if message is not None and hear is not None:
                    hear(rank, message)
                if link.ended:
                    _forget(came, rank)
            if listener.fileno() in events:
                _accept(listener, unknown, room=STRANGERS + len(ranks))
            for link in [link for link in unknown if link.fileno() in events]:
                message = link.read()
                if message is None and not link.ended:
                    continue
                unknown.remove(link)
                if message is None or message.get("rank") not in ranks or not admit(message):
                    _turn_away(link, message)
                    continue
                _forget(came, message["rank"])  # a member that comes again has given up before
                came[message["rank"]] = link, message
    except BaseException:
        for rank in list(came):
            _forget(came, rank)
        raise
    finally:
        for link in unknown:
            link.close()
    return came


def _numbers(links: Iterable[MemberLink]) -> list[int]:
    return [link.fileno() for link in links]


def _accept(listener: socket.socket, unknown: list[MemberLink], *, room: int) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        # Closed before it was accepted; or too many files are open, and it stays ready.
        time.sleep(TICK_S)
        return
    unknown.append(MemberLink(connection))
    if len(unknown) > room:
        unknown.pop(0).close()


def _turn_away(link: MemberLink, message: Mapping[str, Any] | None) -> None:
    if message is not None:
        logger.warning("a connection was refused: it is not of this group, epoch and version")
    link.close()


def _forget(came: dict[int, tuple[MemberLink, Mapping[str, Any]]], rank: int) -> None:
    if rank in came:
        came.pop(rank)[0].close()
