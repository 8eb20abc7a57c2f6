"""The host's end of a supervisor: frames over a pair of streams, many requests at once.

Knows nothing of processes or containers: it is given a reader and a writer, so an attached
container serves as well as a child process.
"""

from __future__ import annotations

import asyncio
import errno
import marshal
import struct
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Protocol

from agentrl.errors import SandboxError, SandboxLost
from agentrl_sandboxes.guest import wire

GUEST = "agentrl_sandboxes.guest"
MODULES = (
    *("wire", "capture", "processes", "files", "trees", "disk", "reset", "held"),
    *("program", "command", "session", "limits", "link", "report", "listeners"),
    *("supervisor", "filter", "stage"),
)
"""What runs inside, in the order of their imports."""

_TAKE = """
import marshal, os, sys
def take(size):
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit(1)
        data += chunk
    return data
"""

BOOT = f"""{_TAKE}
config = marshal.loads(take(int.from_bytes(take(9)[:4], "big")))
for name, code in config.pop("modules"):
    sys.modules[name] = type(sys)(name)
    exec(code, sys.modules[name].__dict__)
sys.modules[config["entry"]].main(config)
"""
"""Run as `python3 -I -S -c BOOT`: takes the modules from the first frame, so that no file of ours
has to be visible where it runs."""

PORTABLE_BOOT = f"""{_TAKE}
import select
if not select.select([0], [], [], %d)[0]:
    sys.exit("nobody has attached")
if sys.version_info < (3, 9):
    sys.exit("its python3 is %%d.%%d, expected 3.9 or newer" %% sys.version_info[:2])
config = marshal.loads(take(int.from_bytes(take(9)[:4], "big")))
same = config.pop("version") == [sys.implementation.name, *sys.version_info[:2]]
for name, text, code in config.pop("modules"):
    sys.modules[name] = type(sys)(name)
    exec(marshal.loads(code) if same else compile(text, "<%%s>" %% name, "exec"),
         sys.modules[name].__dict__)
sys.modules[config["entry"]].main(config)
"""
"""As `BOOT`, for any Python: takes the modules compiled where it is of our version, else as text.
Ends if nobody speaks to it for so many seconds, because nobody may be left who would."""

_VERSION = (sys.implementation.name, *sys.version_info[:2])

_STREAMED = (wire.OUTPUT, wire.CARRIED, wire.RESULT)
MAX_ANSWER = 2**30
MAX_READY = 2**20
"""Bytes of a supervisor's description of itself; variables and mount points are a few thousand."""


class EndedOutside(ConnectionError):
    """The other side has gone for a reason that no program inside can have caused."""


class ByteSource(Protocol):
    """The stream that frames come from; an `asyncio.StreamReader` is one."""

    async def readexactly(self, n: int, /) -> bytes:
        """The next `n` bytes.

        Raises:
            OSError: the other side has gone; says why.
            asyncio.IncompleteReadError: it has ended.
        """
        ...


class ByteSink(Protocol):
    """The stream that frames go to; an `asyncio.StreamWriter` is one."""

    def write(self, data: bytes, /) -> None:
        """Send bytes, now or soon."""
        ...

    async def drain(self) -> None:
        """Wait until more may be written.

        Raises:
            OSError: the other side has gone.
        """
        ...

    def close(self) -> None:
        """End of file for the other side."""
        ...


class Sink(Protocol):
    """Takes the frames of a session or a listener, which come without a request for each."""

    def feed(self, kind: int, body: bytes) -> None:
        """`OUTPUT` or `CARRIED` and, at last, `RESULT`.

        Raises:
            OSError: more than was allowed; the sandbox cannot be trusted with frames any more.
        """
        ...

    def fail(self, error: SandboxError) -> None:
        """There will be no more frames."""
        ...


@cache
def guest_modules() -> list[tuple[str, Any]]:
    """Names and compiled code of the guest, in the order of their imports."""
    found: list[tuple[str, Any]] = [("agentrl_sandboxes", ""), (GUEST, "")]
    for name in MODULES:
        code = compile(_source(name), f"<{name}>", "exec", dont_inherit=True)
        found.append((f"{GUEST}.{name}", code))
    return found


@cache
def _portable_modules() -> list[tuple[str, str, bytes]]:
    """Names, source texts and marshalled code of the guest, in the order of their imports."""
    empty = marshal.dumps(compile("", "<>", "exec"))
    texts = {f"{GUEST}.{name}": _source(name) for name in MODULES}
    return [
        (name, texts.get(name, ""), marshal.dumps(code) if code else empty)
        for name, code in guest_modules()
    ]


def _source(name: str) -> str:
    return resources.files(GUEST).joinpath(f"{name}.py").read_text(encoding="utf-8")


def config_frame(config: Mapping[str, Any]) -> bytes:
    """The first frame: the modules of the guest, and what it is to set up."""
    entry = {"modules": guest_modules(), "entry": "agentrl_sandboxes.guest.stage"}
    body = marshal.dumps({**config, **entry})
    return wire.HEAD.pack(len(body), wire.CONFIG, 0) + body


def portable_frame(config: Mapping[str, Any]) -> bytes:
    """The first frame for a Python that may be another than ours; see `portable_boot`."""
    entry = {
        "modules": _portable_modules(),
        "version": list(_VERSION),
        "entry": "agentrl_sandboxes.guest.stage",
    }
    body = marshal.dumps({**config, **entry}, 2)
    return wire.HEAD.pack(len(body), wire.CONFIG, 0) + body


class Channel:
    """Sends requests and returns each answer to the call that waits for it."""

    def __init__(self, reader: ByteSource, writer: ByteSink) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._sinks: dict[int, Sink] = {}
        self._last = 0
        self._reason = ""
        self._kind: type[SandboxError] = SandboxError
        self._task: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """True while requests can still be answered."""
        return not self._reason

    async def start(self, first: bytes, *, timeout_s: float) -> bytes:
        """Send the config and wait until the supervisor is ready; its description of itself.

        Raises:
            SandboxError: it ended instead, or took too long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(first)
                await self._writer.drain()
                kind, _, said = await self._read_frame(MAX_READY)
        except TimeoutError as error:
            raise SandboxError(f"sandbox: not ready after {timeout_s:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise _kind(error)(f"sandbox: ended before it was ready{_reason(error)}") from error
        if kind != wire.READY:
            raise SandboxError(f"sandbox: expected READY ({wire.READY}), got frame kind {kind}")
        self._task = asyncio.create_task(self._read())
        return said

    async def request(
        self, kind: int, body: Mapping[str, Any], *, timeout_s: float | None
    ) -> bytes:
        """One request, one answer.

        Args:
            kind: of the frame.
            body: what the guest unmarshals.
            timeout_s: how long the answer may take; None where the program decides that.

        Raises:
            OSError: as the guest reports it, of the subclass that fits its errno.
            ValueError: something is larger than was asked for.
            SandboxError: the sandbox is gone or does not answer.
        """
        self._last += 1
        return await self._ask(kind, self._last, body, timeout_s)

    async def open_stream(
        self, kind: int, body: Mapping[str, Any], sink: Sink, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """As `request`, but frames go to `sink` from now until its `RESULT`.

        Returns:
            Their id, and the answer.
        """
        self._last += 1
        ident = self._last
        self._sinks[ident] = sink
        try:
            answer = await self._ask(kind, ident, body, timeout_s)
        except BaseException:
            self._sinks.pop(ident, None)
            raise
        return ident, answer

    def notify(self, kind: int, ident: int, body: Mapping[str, Any]) -> None:
        """Send a frame that has no answer; dropped when the sandbox is gone."""
        if self.open:
            self._send(kind, ident, marshal.dumps(dict(body), 2))

    async def _ask(
        self, kind: int, ident: int, body: Mapping[str, Any], timeout_s: float | None
    ) -> bytes:
        if self._reason:
            raise self._kind(self._reason)
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = future
        try:
            async with asyncio.timeout(timeout_s):
                self._send(kind, ident, marshal.dumps(dict(body), 2))
                await self._drain()
                answer, data = await future
        except TimeoutError as error:
            raise SandboxError(f"sandbox: no answer after {timeout_s or 0:g} s") from error
        except asyncio.CancelledError:
            if kind in (wire.EXEC, wire.START, wire.INPUT, wire.LISTEN) and self.open:
                self._send(wire.CANCEL, ident, b"")
            raise
        finally:
            self._waiting.pop(ident, None)
        if answer == wire.FAILED:
            number, text = _failure(data)
            if number == wire.TOO_LARGE:
                raise ValueError(text)
            raise OSError(number, text)
        return data

    async def close(self, reason: str) -> None:
        """End of file for the supervisor; it exits with everything. Waits until it has ended."""
        self._fail(reason)
        self._writer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _send(self, kind: int, ident: int, body: bytes) -> None:
        self._writer.write(wire.HEAD.pack(len(body), kind, ident) + body)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            self._fail(f"sandbox: ended unexpectedly ({error})", _kind(error))
            raise self._kind(self._reason) from error

    async def _read_frame(self, max_bytes: int = MAX_ANSWER) -> tuple[int, int, bytes]:
        head = await self._reader.readexactly(wire.HEAD.size)
        size, kind, ident = wire.HEAD.unpack(head)
        if size > max_bytes:
            raise OSError(f"a frame of {size} bytes, expected at most {max_bytes}")
        return kind, ident, await self._reader.readexactly(size)

    async def _read(self) -> None:
        try:
            while True:
                kind, ident, body = await self._read_frame()
                future = self._waiting.get(ident)
                if not ident and kind == wire.FAILED:
                    self._fail(f"sandbox: ended, {_failure(body)[1]}")
                elif ident in self._sinks and kind in _STREAMED:
                    self._sinks[ident].feed(kind, body)
                    if kind == wire.RESULT:
                        del self._sinks[ident]
                elif future is not None and not future.done():
                    future.set_result((kind, body))
        except (OSError, struct.error, asyncio.IncompleteReadError) as error:
            self._fail(f"sandbox: ended unexpectedly{_reason(error)}", _kind(error))

    def _fail(self, reason: str, kind: type[SandboxError] = SandboxError) -> None:
        if not self._reason:
            self._reason, self._kind = reason, kind
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._kind(self._reason))
        for sink in self._sinks.values():
            sink.fail(self._kind(self._reason))
        self._sinks.clear()


def _kind(error: Exception) -> type[SandboxError]:
    return SandboxLost if isinstance(error, EndedOutside) else SandboxError


def _reason(error: Exception) -> str:
    """Words of a stream that knows why it has ended."""
    known = isinstance(error, OSError) and error.errno is None and str(error)
    return f": {error}" if known else ""


def _failure(body: bytes) -> tuple[int, str]:
    """Number and text of a `FAILED` frame."""
    if len(body) < wire.ERROR.size:
        return errno.EIO, "an answer without a reason"
    (number,) = wire.ERROR.unpack_from(body)
    return number, body[wire.ERROR.size :].decode("utf-8", "replace")
