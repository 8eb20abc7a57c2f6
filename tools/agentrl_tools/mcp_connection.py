"""A connection to one MCP server: opened and closed by a task of its own, opened again when lost.

The client of the SDK must be left by the task that entered it, and a run opens and closes its parts
in different ones; hence the task. A server that is a child process ends with its connection: stdin
is closed, then it is terminated, then killed; and the kernel kills it when this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import string
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError, EnvError
from agentrl.plugins.distribution import install_command

logger = logging.getLogger(__name__)

CLOSE_S = 15.0
"""The SDK takes up to 7 s for a server that does not want to end."""
CONNECT_S = 30.0
"""To connect to a server on the network, and to send it something."""
READ_S = 300.0
"""A server may hold its answer open; what a call may take is the tool's own limit."""
ALIVE_S = 5.0
"""Seconds a server that left a call without an answer has to show that it lives."""
KEPT_BYTES = 2000
"""Of what a server writes to its stderr, for messages."""

# Survives `exec`: the server dies with the process that started it, even one that was killed.
_TIED = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execvp(sys.argv[1], sys.argv[1:])"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address of a server, or the command that starts it: just one of `command` and `url`."""

    command: Sequence[str] = ()
    """Program and arguments of a server that speaks on its stdin and stdout."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to its environment; `$NAME` stands for a variable of ours."""
    cwd: str | None = None
    """Working directory."""
    url: str = ""
    """Of a server that speaks streamable HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sent with every request; `$NAME` stands for a variable of our environment."""

    def __str__(self) -> str:
        return f"MCP server {self.url or ' '.join(self.command)!r}"


class Connection:
    """Gives out the SDK's client while the server lives."""

    def __init__(self, address: ServerAddress, *, open_s: float) -> None:
        self.address = address
        self._open_s = open_s
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._said = bytearray()
        self._doubted = False
        # One opens, the others wait for it.
        self._opening = asyncio.Lock()

    async def client(self) -> Any:
        """The client of the server, which is started if it is not yet.

        Raises:
            ConfigError: the program is not there, or the SDK is not installed.
            EnvError: the server does not answer as one.
        """
        async with self._opening:
            if self._doubted and not await self._answers():
                await self.close()
            if self._client is None:
                await self.close()
                await self._open()
            return self._client

    def doubt(self, client: Any) -> None:
        """Record that a call timed out: the next one asks first whether the server still lives."""
        self._doubted = self._doubted or client is self._client

    async def works(self) -> bool:
        """True if the server lists its tools now; it is started again if it has ended."""
        try:
            client = await self.client()
            async with asyncio.timeout(ALIVE_S):
                await client.list_tools()
        except Exception:  # whatever the SDK makes of a broken server
            logger.debug("%s: does not list its tools", self.address, exc_info=True)
            return False
        return True

    async def _answers(self) -> bool:
        self._doubted = False
        try:
            async with asyncio.timeout(ALIVE_S):
                await self._client.list_tools()
        except TimeoutError:
            return False
        except Exception:  # any other answer is one; a lost connection shows in the call itself
            logger.debug("%s: asked whether it lives", self.address, exc_info=True)
        return True

    async def lose(self, client: Any) -> None:
        """Give up a client whose connection is broken; the next call opens another."""
        async with self._opening:
            if self._client is client:
                await self.close()

    async def close(self) -> None:
        """End the connection and the server, if we started it. Idempotent."""
        task, self._task, self._client = self._task, None, None
        self._doubted = False
        if task is not None:
            self._stop.set()
            done, _ = await asyncio.wait([task], timeout=CLOSE_S)
            if not done:
                task.cancel()
                await asyncio.wait([task], timeout=CLOSE_S)

    async def _open(self) -> None:
        self._stop = asyncio.Event()
        self._said.clear()
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready, self._stop))
        try:
            async with asyncio.timeout(self._open_s):
                self._client = await ready
        except (ConfigError, asyncio.CancelledError):
            await self._give_up()
            raise
        except Exception as error:  # the SDK and its transports raise many kinds
            await self._give_up()
            late = isinstance(error, TimeoutError)
            what = f"did not answer within {self._open_s:g} s" if late else _reason(error)
            raise EnvError(f"{self.address} cannot be used: {what}{self.last_words()}") from error

    async def _give_up(self) -> None:
        """Close what may be waiting for a server that never answers."""
        if self._task is not None:
            self._task.cancel()
        await self.close()

    async def _live(self, ready: asyncio.Future[Any], stop: asyncio.Event) -> None:
        """Enter the client, hand it out, wait, leave it."""
        try:
            async with self._connected() as client:
                if not ready.done():
                    ready.set_result(client)
                await stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
                return
            if isinstance(error, Exception):
                logger.debug("%s: closing failed", self.address, exc_info=True)
                return
            raise

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        try:
            import httpx2
            from mcp import Client, StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise ConfigError(
                f"{self.address} needs the package mcp ({error}); run {install_command('mcp')}"
            ) from None
        # It logs a traceback for each line that is no message; our errors say what matters.
        logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
        address = self.address
        async with contextlib.AsyncExitStack() as stack:
            if address.url:
                http = httpx2.AsyncClient(
                    headers=_filled(address.headers, "headers"),
                    timeout=httpx2.Timeout(CONNECT_S, read=READ_S),
                )
                await stack.enter_async_context(http)
                transport = streamable_http_client(address.url, http_client=http)
            else:
                program, *arguments = _tied(address.command)
                words = await stack.enter_async_context(self._listening())
                parameters = StdioServerParameters(
                    command=program,
                    args=arguments,
                    env=_filled(address.env, "env"),
                    cwd=address.cwd,
                )
                transport = stdio_client(parameters, errlog=words)
            yield await stack.enter_async_context(Client(transport))

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[Any]:
        """A file for the server's stderr, of which the last words are kept."""
        ours, theirs = os.pipe()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _LastWords(self._said), os.fdopen(ours, "rb", buffering=0)
        )
        with contextlib.closing(reading), os.fdopen(theirs, "wb") as stream:
            yield stream

    def last_words(self) -> str:
        """The last stderr lines of the server, as the end of a message."""
        text = self._said.decode("utf-8", "replace").strip()
        return f"; it said: {text}" if text else ""


class _LastWords(asyncio.Protocol):
    """Keeps the end of what it is given."""

    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    def data_received(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-KEPT_BYTES]


def _tied(command: Sequence[str]) -> list[str]:
    """The command, so that it ends with us where the kernel can see to that."""
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(
            f"MCP server: there is no program {command[0]!r}; install it or give its full path"
        )
    if not sys.platform.startswith("linux"):
        return [program, *command[1:]]
    return [sys.executable, "-I", "-S", "-c", _TIED, program, *command[1:]]


def _filled(values: Mapping[str, str], what: str) -> dict[str, str]:
    """The values with `$NAME` replaced, so that secrets need not stand in a run file."""
    try:
        return {k: string.Template(str(v)).substitute(os.environ) for k, v in values.items()}
    except KeyError as error:
        raise ConfigError(
            f"MCP server: {what} names the environment variable {error.args[0]}, which is not set"
        ) from None
    except ValueError as error:
        raise ConfigError(f"MCP server: {what}: {error}; write $$ for a dollar sign") from None


def _reason(error: BaseException) -> str:
    """The first error inside groups of errors, which have no meaning themselves."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
