"""Sandboxes that are a supervisor in some kind of enclosure; the enclosure is the backend's part.

A backend starts a supervisor and says how to end it (`Started`); everything else, from limits to
files, is the same for all of them and lives here and in `guest`.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, SandboxError, SandboxUnavailable
from agentrl.sandbox import (
    ExecResult,
    FileTree,
    Isolation,
    MakeProtocol,
    Probe,
    Process,
    Sandbox,
    SandboxBackend,
    SandboxLimits,
    SandboxPort,
    Snapshot,
)
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.answers import decode_result, decode_tree, encode_tree
from agentrl_sandboxes.host.channel import Channel
from agentrl_sandboxes.host.ports import GuestPort
from agentrl_sandboxes.host.sessions import SessionProcess
from agentrl_sandboxes.host.upload import pack_source

logger = logging.getLogger(__name__)

ANSWER_S = 30.0
"""How long past its own limit a supervisor may take before it counts as broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A supervisor that is ready, wherever it runs."""

    channel: Channel
    """Its frames, after READY."""
    config: Mapping[str, Any]
    """What it was given; see `agentrl_sandboxes.guest.supervisor.main`."""
    end: Callable[[bool], Awaitable[None]]
    """Frees what it ran in, after the channel is closed; called with whether it had failed
    before. Must not raise, and is never cancelled."""


class TreeSnapshot(Snapshot):
    """A work directory as marshalled entries, in the host's memory (at most `disk_bytes`)."""

    def __init__(self, entries: bytes) -> None:
        self.entries: bytes | None = entries
        self.size_bytes = len(entries)

    async def close(self) -> None:
        """Free the memory of the snapshot."""
        self.entries = None


class SupervisedSandbox(Sandbox):
    """A sandbox that is spoken to through its supervisor."""

    def __init__(
        self,
        limits: SandboxLimits,
        started: Started,
        on_close: Callable[[SupervisedSandbox], None],
    ) -> None:
        self.limits = limits
        self.workdir = started.config["workdir"]
        self.started = started
        """Enclosure it runs in."""
        self._channel = started.channel
        self._on_close = on_close
        self._closing: asyncio.Task[None] | None = None

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a program; see `Sandbox.exec`."""
        timeout = command_timeout(timeout_s, self.limits)
        request = self._program(command, cwd, env) | {"stdin": stdin, "timeout": float(timeout)}
        try:
            body = await self._channel.request(wire.EXEC, request, timeout_s=timeout + ANSWER_S)
        except OSError as error:
            # The program has not run: no process or pipe could be had for it.
            raise SandboxError(f"sandbox: cannot run a command: {error.strerror}") from error
        return decode_result(body)

    async def start(
        self,
        command: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Run a program that stays; see `Sandbox.start`. stdout and stderr are one pipe."""
        process = SessionProcess(self._channel)
        request = self._program(command, cwd, env)
        try:
            await process.begin(request)
        except OSError as error:
            raise SandboxError(f"sandbox: cannot start a program: {error.strerror}") from error
        return process

    async def listen(self, make_protocol: MakeProtocol) -> SandboxPort:
        """Open a port inside; see `Sandbox.listen`."""
        port = GuestPort(self._channel, make_protocol)
        await port.begin()
        return port

    def _program(
        self, command: Sequence[str], cwd: str | None, env: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """The parts of a request that name what to run."""
        if isinstance(command, str) or not command:
            raise ValueError(f"sandbox exec: expected a list of arguments, got {command!r}")
        merged = {**self.started.config["env"], **(env or {})}
        for text in (*command, cwd or "", *merged, *merged.values()):
            _no_nul(text)
        bad = [name for name in merged if not name or "=" in name]
        if bad:
            raise ValueError(f"sandbox exec: not a name of an environment variable: {bad[0]!r}")
        return {
            "argv": [os.fsencode(part) for part in command],
            "cwd": os.fsencode(cwd or "."),
            "env": {os.fsencode(k): os.fsencode(v) for k, v in merged.items()},
        }

    async def read_file(self, path: str, *, max_bytes: int = 2**20) -> bytes:
        """Read a file; see `Sandbox.read_file`."""
        request = {"path": os.fsencode(_no_nul(path)), "max_bytes": max_bytes}
        try:
            return await self._channel.request(wire.READ, request, timeout_s=ANSWER_S)
        except ValueError as error:
            raise ValueError(f"{path!r} {error}, more than max_bytes={max_bytes}") from None
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file; see `Sandbox.write_file`."""
        request = {"path": os.fsencode(_no_nul(path)), "data": bytes(data)}
        try:
            await self._channel.request(wire.WRITE, request, timeout_s=ANSWER_S)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, path) from None

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or tree from the host; see `Sandbox.upload`."""
        _no_nul(target)
        entries = await asyncio.to_thread(pack_source, source, self.limits.disk_bytes)
        await self._unpack(marshal.dumps(entries, 2), os.fsencode(target))

    async def download(self, source: str, *, max_bytes: int) -> dict[str, bytes]:
        """Files at or below a path; see `Sandbox.download`. Permission bits do not hinder it."""
        found = await self._fetch(source, max_bytes, whole=False)
        return {path: entry.data for path, entry in found.files().items()}

    async def download_tree(self, source: str, *, max_bytes: int) -> FileTree:
        """A whole folder; see `Sandbox.download_tree`. Permission bits do not hinder it."""
        return await self._fetch(source, max_bytes, whole=True)

    async def upload_tree(self, tree: FileTree, target: str) -> None:
        """Lay a tree out; see `Sandbox.upload_tree`."""
        _no_nul(target)
        await self._unpack(await asyncio.to_thread(encode_tree, tree), os.fsencode(target))

    async def _fetch(self, source: str, max_bytes: int, *, whole: bool) -> FileTree:
        path = os.fsencode(_no_nul(source))
        request = {"path": path, "max_bytes": max_bytes, "whole": whole}
        try:
            body = await self._channel.request(wire.FETCH, request, timeout_s=ANSWER_S)
        except ValueError as error:
            raise ValueError(f"{source!r} {error}, max_bytes={max_bytes}") from None
        except OSError as error:
            raise type(error)(error.errno, error.strerror, source) from None
        return decode_tree(body, max_bytes, whole=whole)

    async def snapshot(self) -> Snapshot:
        """Freeze the work directory; see `Sandbox.snapshot`."""
        # A file of holes looks larger than the disk it is on, and a fork could not hold it.
        request = {"max_bytes": 2 * self.limits.disk_bytes}
        try:
            return TreeSnapshot(await self._channel.request(wire.PACK, request, timeout_s=ANSWER_S))
        except ValueError as error:
            raise ValueError(f"sandbox snapshot: the work directory {error}") from None

    async def reset(self) -> None:
        """Make it as good as new: kill all inside, empty every writable place, and see to it.

        Calls that are still waiting end with `SandboxError`.

        Raises:
            SandboxUnavailable: this kind of sandbox cannot be cleaned; start a fresh one.
            SandboxError: it could not be made clean; close it.
        """
        if not self.started.config["resettable"]:
            raise SandboxUnavailable("this kind of sandbox cannot be reset; start a fresh one")
        try:
            await self._channel.request(wire.RESET, {}, timeout_s=ANSWER_S)
        except OSError as error:
            raise SandboxError(f"sandbox: cannot be made clean: {error.strerror}") from error

    async def close(self) -> None:
        """End the sandbox with all in it; see `Sandbox.close`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._end())
        # Shielded: a cancelled rollout must not leave its sandbox behind.
        await asyncio.shield(self._closing)

    async def fill(self, snapshot: Snapshot) -> None:
        """Lay out a snapshot in the empty work directory."""
        if not isinstance(snapshot, TreeSnapshot) or snapshot.entries is None:
            raise SandboxError(
                f"sandbox: expected an open snapshot of this package, got {type(snapshot).__name__}"
            )
        await self._unpack(snapshot.entries, b".")

    async def _unpack(self, entries: bytes, target: bytes) -> None:
        request = {"entries": entries, "target": target}
        await self._channel.request(wire.UNPACK, request, timeout_s=ANSWER_S)

    async def _end(self) -> None:
        failed = not self._channel.open
        await self._channel.close("sandbox: closed")
        await self.started.end(failed)
        self._on_close(self)


class SupervisedBackend(SandboxBackend):
    """Starts supervisors; a subclass defines in what."""

    isolation: Isolation
    """Strength of the isolation."""
    remedy: str = ""
    """What to install or switch on when it does not."""
    options: tuple[str, ...] = ()
    """Keys of the `sandbox` section that its constructor takes: `image`, `runtime`, `read_only`."""
    automatic: bool = True
    """Whether `sandbox.backend: auto` may choose it."""

    def __init__(self) -> None:
        self._open: set[SupervisedSandbox] = set()
        self._started = 0

    @abstractmethod
    async def begin(self, limits: SandboxLimits, number: int, image: str) -> Started:
        """Start the `number`th supervisor and wait until it is ready; leave nothing if it fails.

        Raises:
            SandboxUnavailable: there is no such image, or there are no images at all.
            SandboxError: something it needs is missing.
        """

    def memory_holder(self) -> str:
        """Describe in words what keeps its sandboxes within their memory."""
        return "a cgroup holds its memory"

    async def probe(self) -> Probe:
        """Run a shell and Python in a sandbox and report how it went."""
        failure = await self.tried("sh", "-c", "python3 -I -S -c 'print(40 + 2)'")
        if failure is not None:
            return failure
        detail = f"{self.name} works: a command ran inside it; {self.memory_holder()}"
        return Probe(available=True, isolation=self.isolation, detail=detail)

    async def tried(self, *command: str) -> Probe | None:
        """The probe of a backend in which a command that prints 42 fails; None where it ran."""
        sandbox: Sandbox | None = None
        try:
            sandbox = await self.create(SandboxLimits())
            result = await sandbox.exec(command)
            if result.stdout.strip() != "42":
                raise SandboxError(f"a test command gave {result}")
        except (SandboxError, ConfigError) as error:
            remedy = f". {self.remedy}" if self.remedy else ""
            detail = f"{self.name} does not work here: {error}{remedy}"
            return Probe(available=False, isolation=self.isolation, detail=detail)
        finally:
            if sandbox is not None:
                await sandbox.close()
        return None

    async def glance(self) -> Probe:
        """As `probe`, for a list of all: where a try would be felt elsewhere, it is not made."""
        return await self.probe()

    async def create(
        self, limits: SandboxLimits, snapshot: Snapshot | None = None, *, image: str = ""
    ) -> Sandbox:
        """Start a supervisor; see `SandboxBackend.create`."""
        self._started += 1
        started = await self.begin(limits, self._started, image)
        sandbox = SupervisedSandbox(limits, started, self._open.discard)
        self._open.add(sandbox)
        return await filled(sandbox, snapshot)

    async def close(self) -> None:
        """Close every sandbox still open."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._open)))


def command_timeout(timeout_s: float | None, limits: SandboxLimits) -> float:
    """Seconds that a command may take.

    Raises:
        ValueError: none, or more than the limit.
    """
    timeout = limits.wall_s if timeout_s is None else timeout_s
    if not 0 < timeout <= limits.wall_s:
        raise ValueError(
            f"sandbox exec: timeout_s={timeout:g}, expected more than 0 and at most the "
            f"limit wall_s={limits.wall_s:g}"
        )
    return timeout


async def filled(sandbox: Sandbox, snapshot: Snapshot | None) -> Sandbox:
    """A new sandbox with what the snapshot holds; closed if that cannot be laid out."""
    if snapshot is not None:
        try:
            await sandbox.fill(snapshot)
        except BaseException:
            await sandbox.close()
            raise
    return sandbox


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"sandbox: a NUL character in {text!r}")
    return text
