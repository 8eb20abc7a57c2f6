"""Connections between the members of a relay, and the small messages that go over them.

A message is its length in four bytes and a JSON object. It is read byte by byte as far as it goes,
so whatever follows it on the connection is still there for the next reader. No socket here ever
blocks: members wait for at most `TICK_S` at a time, so another thread can always end a wait.
"""

from __future__ import annotations

import hmac
import logging
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
"""Connections that may wait for their first message; beyond them the oldest is closed."""
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

        Messages are few and far smaller than the buffer of a connection.
        """
        text = orjson.dumps(message)
        data = _LENGTH.pack(len(text)) + text
        try:
            self.ended = self.socket.send(data) < len(data) or self.ended
        except OSError:
            self.ended = True

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


def reach(host: str, port: int, *, who: str, timeout_s: float) -> MemberLink:
    """Connect to another member.

    Raises:
        MemberLost: it does not accept the connection.
    """
    try:
        limit_s = min(timeout_s, CONNECT_LIMIT_S)
        return MemberLink(socket.create_connection((host, port), timeout=limit_s))
    except OSError as error:
        raise MemberLost(f"cannot reach {who} at {host}:{port}: {error}") from error


def heed(control: MemberLink, *, waits: str, idle_s: float) -> None:
    """In a receiver: answer the sender's questions, and end when it ends the sync.

    Args:
        control: link to the sender.
        waits: as `agentrl.sync.relay.evidence.MemberReport.waits`.
        idle_s: seconds without a byte.

    Raises:
        MemberLost: the sync has ended, or the sender is gone.
    """
    while (message := control.read()) is not None:
        if "ask" in message:
            control.say(waits=waits, idle_s=idle_s)
        if "end" in message:
            raise MemberLost(str(message["end"]))
    if control.ended:
        raise MemberLost("the sender of the weights is gone, or has left the sync")


def ready(waiting: Mapping[int, int]) -> dict[int, int]:
    """Events of open files within `TICK_S`: those that can be read or written, by number."""
    poller = select.poll()
    for number, events in waiting.items():
        poller.register(number, events)
    return dict(poller.poll(TICK_S * 1e3))


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
    check: Callable[[], None],
) -> dict[int, tuple[MemberLink, Mapping[str, Any]]]:
    """Accept the connections of members; whoever else connects is turned away and delays nothing.

    Args:
        listener: takes the connections.
        ranks: those that are expected.
        admit: says whether a first message is that of a member; it names its `rank`.
        timeout_s: seconds to wait for all.
        check: called all the time; raises to end the wait.

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
                if link.fileno() in events and link.read() is None and link.ended:
                    _forget(came, rank)
            if listener.fileno() in events:
                _accept(listener, unknown)
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


def _accept(listener: socket.socket, unknown: list[MemberLink]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:  # it was closed before it was accepted
        return
    unknown.append(MemberLink(connection))
    if len(unknown) > STRANGERS:
        unknown.pop(0).close()


def _turn_away(link: MemberLink, message: Mapping[str, Any] | None) -> None:
    if message is not None:
        logger.warning("a connection was refused: it is not of this group, epoch and version")
    link.close()


def _forget(came: dict[int, tuple[MemberLink, Mapping[str, Any]]], rank: int) -> None:
    if rank in came:
        came.pop(rank)[0].close()
