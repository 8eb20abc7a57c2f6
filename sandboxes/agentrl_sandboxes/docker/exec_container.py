"""What runs in a container that has no supervisor: programs under marks, and scripts of ours.

Whoever talks to the container goes through here, so that what is swept away when a command ends is
the command and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.docker import exec_files as scripts
from agentrl_sandboxes.docker.client import Client
from agentrl_sandboxes.docker.containers import Running
from agentrl_sandboxes.docker.exec_broom import Broom, Outlived
from agentrl_sandboxes.docker.exec_stream import ExecStream, open_exec
from agentrl_sandboxes.host.layout import BASE

WORKDIR = f"{BASE}/work"
BLOCK = 512
"""Unit of a shell's limit of file sizes."""
FILES_S = 60.0
"""How long one operation on files may take."""

PROGRAM = r"""
ulimit -f "$2"
echo 1000 >/proc/self/oom_score_adj
[ -z "$5" ] || { exec 2>&1; echo "$$ $(stat -L -c %d:%i /proc/self/fd/0 2>/dev/null)"; }
ulimit -c 0; ulimit -n "$4"; { ulimit -u "$3" || ulimit -p "$3"; } 2>/dev/null
cd -- "$1" || exit 126
shift 5
exec "$@"
"""
"""Arguments: directory, mark, processes, open files, and anything if it stays: then it says its
process id and which file its stdin is first, and has one pipe for all its output."""


class ExecContainer:
    """One container and its daemon."""

    def __init__(
        self,
        client: Client,
        running: Running,
        limits: SandboxLimits,
        uid: int,
        env: Mapping[str, str],
    ) -> None:
        self.running = running
        self.env = env
        """What every program gets."""
        self.reason = ""
        """Why it is closed; empty while it is not."""
        self.broom = Broom(self._broom)
        self._limits = limits
        self._client = client
        self._uid = uid
        self._numbers = itertools.count(1)
        self._marks: set[str] = set()
        self._streams: set[ExecStream] = set()
        # What comes while others are swept away must not be swept with them.
        self._turn = asyncio.Lock()

    def check_open(self) -> None:
        """Raise `SandboxError` if it is closed."""
        if self.reason:
            raise SandboxError(self.reason)

    async def enter(self) -> str:
        """A mark for one command: a size that is larger than any file can be."""
        self.check_open()
        mark = str(self._limits.disk_bytes // BLOCK + 2 + next(self._numbers))
        async with self._turn:
            self._marks.add(mark)
        return mark

    async def leave(self, mark: str) -> None:
        """Kill all that is left of a command, and whoever belongs to no command.

        What cannot be killed ends with the whole container. That is no error of this command, whose
        doing it is: it would be tried again for free. The next one finds the sandbox closed.

        Raises:
            SandboxError: the container is gone.
        """
        async with self._turn:
            self._marks.discard(mark)
            if self.reason:
                return
            kept = [self.shown(other) for other in self._marks]
            try:
                await self.broom.sweep(kept)
            except SandboxError as error:
                self.reason = self.reason or str(error)
                await self.running.end()
                if not isinstance(error, Outlived):
                    raise

    @contextlib.asynccontextmanager
    async def command(self) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """A mark for the time of a `with` block, and a way to leave before its end."""
        mark = await self.enter()
        left = False

        async def leave() -> None:
            nonlocal left
            left = True
            await self.leave(mark)

        try:
            yield mark, leave
        finally:
            if not left:
                await asyncio.shield(self.leave(mark))

    async def begin(
        self,
        mark: str,
        cwd: str | None,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        stays: bool = False,
    ) -> ExecStream:
        """Start a program under a mark; one that stays says its process id first."""
        limits = self._limits
        place = cwd if cwd and cwd.startswith("/") else f"{WORKDIR}/{cwd or ''}".rstrip("/")
        numbers = (mark, str(limits.processes), str(limits.open_files))
        head = ("sh", "-c", PROGRAM, "sh", place, *numbers, "stays" if stays else "")
        return await self._open((*head, *argv), env)

    async def script(
        self, script: str, *arguments: str, stdin: bytes = b"", most: int = 2**16
    ) -> scripts.Said:
        """Run one of our scripts; its exit status says what came of it.

        Raises:
            ValueError: it printed more than `most` bytes.
            SandboxError: it did not end, or the container is gone.
        """
        mark = await self.enter()
        try:
            said = await self._converse(mark, script, arguments, stdin, most)
        except BaseException:
            await asyncio.shield(self.leave(mark))
            raise
        # It has ended and has left nothing behind.
        self._marks.discard(mark)
        return said

    async def reads(self, stdin: str, mark: str) -> bool:
        """Whether a process may still read from a file, told by a `stat` of it.

        The daemon takes a program's stdin and cannot tell that nobody reads it any more.

        Args:
            stdin: device and inode; empty means that it is not known.
            mark: of processes that may have it where we cannot look.
        """
        if not stdin:
            return True
        said = await self.script(scripts.READERS, stdin, self.shown(mark))
        # A program may have killed the script, and then nothing is known.
        return said.out.strip() != b"none"

    async def _converse(
        self, mark: str, script: str, arguments: Sequence[str], stdin: bytes, most: int
    ) -> scripts.Said:
        kept: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        marked = f"ulimit -f {mark}\n{script}"
        stream = await self._open(("sh", "-c", marked, "agentrl", *arguments), self.env)
        giving = asyncio.create_task(stream.give(stdin))
        try:
            async with asyncio.timeout(FILES_S):
                async for number, data in stream.frames():
                    kept[number == 2].extend(data)
                    if len(kept[0]) > most:
                        raise ValueError(f"{arguments[1]!r} is larger than {most} bytes")
                status = await stream.status()
        except TimeoutError as error:
            raise SandboxError(f"sandbox: no answer after {FILES_S:g} s") from error
        finally:
            giving.cancel()
            self.drop(stream)
        self.check_open()
        return scripts.Said(status=status, out=bytes(kept[0]), err=bytes(kept[1]))

    async def _broom(self, script: str) -> ExecStream:
        """Start the shell that ends programs."""
        return await self._open(("sh", "-c", script, "agentrl", str(self._uid)), self.env, uid=0)

    async def _open(
        self, argv: Sequence[str], env: Mapping[str, str], *, uid: int | None = None
    ) -> ExecStream:
        user = self._uid if uid is None else uid
        opening = asyncio.create_task(
            open_exec(self._client, self.running.container, argv, uid=user, env=env)
        )
        try:
            stream = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A program that is being started cannot be swept away yet, so it is waited for.
            await asyncio.wait([opening])
            if opening.exception() is None:
                opening.result().abort()
            raise
        self._streams.add(stream)
        if self.reason:
            stream.abort()
            raise SandboxError(self.reason)
        return stream

    def drop(self, stream: ExecStream) -> None:
        """Let go of a program's streams."""
        stream.abort()
        self._streams.discard(stream)

    def shown(self, mark: str) -> str:
        """A mark as /proc shows it."""
        return str(int(mark) * BLOCK)

    async def prepare(self) -> None:
        """Make the places of a program, once, before anything else.

        Raises:
            SandboxUnavailable: the image lacks a shell, or a program that files need.
        """
        no_shell = (
            "sandbox: the image has neither Python 3.9 or newer nor a shell `sh`; use one that has"
        )
        try:
            said = await self.script(scripts.PREPARE, BASE)
        except SandboxError as error:
            # Docker's init has ended, because it found no shell to run.
            if "exec sh failed" in self.running.attached.errors:
                raise SandboxUnavailable(no_shell) from error
            raise
        if said.status in (126, 127):
            raise SandboxUnavailable(no_shell)
        if said.status:
            lacking = (said.out or said.err[-300:]).decode("utf-8", "replace").strip()
            raise SandboxUnavailable(
                "sandbox: the image has no Python 3.9 or newer, and for the way without it no "
                f"{lacking!r}; use an image that has one of them"
            )
        # Before any program can keep the daemon from starting it.
        await self.broom.killed()

    async def end(self) -> None:
        """Let go of everything and see the container gone."""
        self.broom.drop()
        for stream in list(self._streams):
            stream.abort()
        await self.running.end()
