"""Supervisors that are child processes of ours, in whatever a command line can enclose them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.guest import disk, processes
from agentrl_sandboxes.host.cgroups import (
    REMOVAL_S,
    MemoryGroup,
    group_home,
    memory_group,
    what_holds_memory,
)
from agentrl_sandboxes.host.channel import Channel, config_frame
from agentrl_sandboxes.host.supervised import Started, SupervisedBackend

logger = logging.getLogger(__name__)

START_S = 20.0
"""A start takes some 20 ms; this bounds one on a machine that is very busy."""
EXIT_S = 5.0
"""How long a supervisor may take to end after its stdin has closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command and the config that start one supervisor as a child process."""

    argv: Sequence[str]
    """The command; its stdin and stdout become the channel."""
    config: Mapping[str, Any]
    """For `agentrl_sandboxes.guest.stage`."""
    base: Path | None = None
    """A directory of the host that must be gone afterwards."""
    mark: str = ""
    """Found in the environment of every process started inside; for cleaning up after a supervisor
    that was killed, where no namespace does it."""


class ChildBackend(SupervisedBackend):
    """Starts supervisors as child processes; a subclass defines in what."""

    # Starts are bounded here, by the processors of the machine.
    starts_fast = True

    def __init__(self) -> None:
        super().__init__()
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    def memory_holder(self) -> str:
        """Name what holds memory; see `SupervisedBackend.memory_holder`."""
        return what_holds_memory()

    @abstractmethod
    def launch(self, limits: SandboxLimits, number: int) -> Launch:
        """The command and config that start the `number`th sandbox.

        Raises:
            SandboxError: something it needs is missing.
        """

    async def begin(self, limits: SandboxLimits, number: int, image: str) -> Started:
        """Start a child process; see `SupervisedBackend.begin`."""
        if image:
            raise SandboxUnavailable(
                f"sandbox backend {self.name!r} has no images, and image {image!r} is wanted; set "
                "sandbox.backend: docker"
            )
        if not group_home.cache_info().currsize:
            # It is looked for once, which takes some ms.
            await asyncio.to_thread(group_home)
        launch = self.launch(limits, number)
        group = memory_group(limits)
        # The semaphore bounds how many starts compete for the processors at once.
        try:
            async with self._starts:
                process, channel = await start_child(launch, group.fds if group else {})
        except BaseException:
            await asyncio.shield(_remove(group))
            raise
        if group is not None:
            # The supervisor has its own now.
            group.close_files()

        async def end(failed: bool) -> None:
            failed = failed or process.poll() is not None
            await end_process(process)
            failed = failed or process.returncode != 0
            if launch.mark and failed:
                await asyncio.to_thread(kill_marked, launch.mark)
            if failed and launch.config["program_uid"] is not None:
                # A supervisor that was killed has not done it.
                await asyncio.to_thread(disk.wipe_shared, launch.config["program_uid"])
            await _remove(group)
            if launch.base is not None and launch.base.exists():
                await asyncio.to_thread(disk.wipe, str(launch.base))

        return Started(channel=channel, config=launch.config, end=end)


async def _remove(group: MemoryGroup | None) -> None:
    """Remove the cgroup of a sandbox that has ended; what is left is swept by the next process."""
    if group is None:
        return
    group.close_files()
    loop = asyncio.get_running_loop()
    give_up = loop.time() + REMOVAL_S
    try:
        while not group.remove():
            if loop.time() > give_up:
                raise OSError(errno.EBUSY, "processes are still in it")
            await asyncio.sleep(0.002)
    except OSError as error:
        logger.warning("sandbox: cgroup %s is left behind: %s", group.path, error.strerror)


async def start_child(
    launch: Launch, files: Mapping[str, int]
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start the process, send its config, wait for READY.

    Args:
        launch: what to start.
        files: open files of its cgroup, which it inherits; none where it has no cgroup.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            launch.argv,
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            env={"PATH": os.defpath},
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(files.values()),
        )
    except OSError as error:
        ours.close()
        raise SandboxError(f"cannot run {launch.argv[0]!r}: {error.strerror}") from error
    finally:
        theirs.close()
    try:
        channel = Channel(*await asyncio.open_connection(sock=ours))
        try:
            config = {**launch.config, "group": dict(files) or None}
            await channel.start(config_frame(config), timeout_s=START_S)
        except SandboxError as error:
            await channel.close("sandbox: never started")
            last = (await end_process(process)).strip().rpartition("\n")[2]
            raise SandboxError(f"{error}; it said: {last or 'nothing'}") from error
        except BaseException:
            await channel.close("sandbox: never started")
            raise
    except BaseException:
        await asyncio.shield(end_process(process))
        raise
    return process, channel


async def end_process(process: subprocess.Popen[bytes]) -> str:
    """Wait for a supervisor whose stdin has closed; kill it with all below if it hangs.

    Returns what it wrote to its stderr, where only a supervisor in trouble writes.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + EXIT_S
    pause = 0.001
    while process.poll() is None:
        if loop.time() > give_up:
            logger.warning("a sandbox did not end within %g s; killing it", EXIT_S)
            processes.kill_below(process.pid)
            process.kill()
            give_up = loop.time() + EXIT_S
        await asyncio.sleep(pause)
        pause = min(0.05, pause * 1.5)
    if process.stderr is None or process.stderr.closed:
        return ""
    with process.stderr:
        os.set_blocking(process.stderr.fileno(), False)
        return (process.stderr.read() or b"").decode("utf-8", "replace")


def kill_marked(mark: str) -> None:
    """Kill the processes of ours whose environment contains `mark`, until there are none."""
    for _ in range(20):
        found = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark.encode() in (entry / "environ").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)
                        found += 1
        if not found:
            return
