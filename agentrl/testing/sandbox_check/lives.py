"""Checks of a sandbox's lives: the end of its lifetime, and a second one after `reset`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time

from agentrl.errors import SandboxError
from agentrl.sandbox import Isolation, Outcome, Sandbox, SandboxBackend
from agentrl.testing.sandbox_check.check import (
    BEAT,
    LIMITS,
    SOON,
    brief,
    check,
    expect,
    good,
    opened,
    python,
    refused,
    until_beating,
)


@check()
async def lifetime_ends_a_sandbox(backend: SandboxBackend) -> None:
    """At the end of its lifetime a sandbox is gone: what waits is `SandboxError`, and stays so."""
    limits = dataclasses.replace(LIMITS, lifetime_s=1.5)
    begun = time.monotonic()
    async with opened(backend, limits) as sandbox:
        # A command that outlives its sandbox ends otherwise, which is not what is expected here.
        await refused(sandbox.exec(("sleep", "600"), timeout_s=SOON.get()), SandboxError)
        assert time.monotonic() - begun >= 1.5, "it ended early"
        await refused(sandbox.exec(("true",)), SandboxError)


@check()
async def lifetime_is_for_each(backend: SandboxBackend) -> None:
    """A sandbox that was made later ends later."""
    # A loaded machine may take the second one's whole life to notice the end of the first.
    for lifetime_s in (2.0, 8.0, 30.0):
        limits = dataclasses.replace(LIMITS, lifetime_s=lifetime_s)
        async with opened(backend, limits) as first:
            await asyncio.sleep(0.6 * lifetime_s)
            begun = time.monotonic()
            async with opened(backend, limits) as second:
                await refused(first.exec(("sleep", "600")), SandboxError)
                with contextlib.suppress(SandboxError):
                    return expect(await second.exec(("true",)), Outcome.OK)
                seconds = time.monotonic() - begun
                assert seconds >= lifetime_s, f"the second one ended after {seconds:.1f} s"
    raise AssertionError("the second one never answered after the end of the first")


LITTER = """
import os, struct, sys
places = ['.', os.environ['HOME'], os.environ['TMPDIR'], '/tmp', '/var/tmp', '/dev/shm', '/run']
for place in places + sys.argv[1:]:
    try:
        os.makedirs(place + '/litter/deep/er'); os.chmod(place + '/litter/deep', 0)
        open(place + '/.hidden', 'w').write('x'); os.symlink('/etc', place + '/link')
        os.mkfifo(place + '/pipe'); os.chmod(place, 0o500)
    except OSError: pass
os.chmod('.', 0o700); os.mkdir('down'); os.chdir('down')
for _ in range(3000):
    os.mkdir('d' * 20); os.chdir('d' * 20)
open('bottom', 'w').write('x')
kind = lambda tag, id: struct.pack('<HHI', tag, 7, id)
none = 0xffffffff
rights = struct.pack('<I', 2) + kind(1, none) + kind(2, 4711) + kind(4, none) + kind(16, none)
for place in ('/tmp', os.path.dirname(os.environ['HOME'])):
    for name in ('system.posix_acl_default', 'system.posix_acl_access'):
        try: os.setxattr(place, name, rights + kind(32, none))
        except OSError: pass
"""
LOOK = """
import os
places = ['.', '..', os.environ['HOME'], os.environ['TMPDIR'], '/tmp', '/dev/shm', '/dev/mqueue']
for place in places:
    if os.path.isdir(place):
        print(place, sorted(os.listdir(place)), oct(os.stat(place).st_mode), os.listxattr(place))
        if os.stat(place).st_mtime < 2: print('a time of before')
"""


AGE = "import os\ntry: os.utime('/tmp', (1, 1))\nexcept PermissionError: pass"
"""Where `/tmp` is somebody else's nobody can change its time."""


async def _reset(sandbox: Sandbox) -> None:
    await asyncio.wait_for(sandbox.reset(), SOON.get())


@check(Isolation.NAMESPACES, optional="reset")
async def reset_wipes_files(backend: SandboxBackend) -> None:
    """After a reset every writable place is as it was: empty, with its permissions."""
    async with opened(backend) as sandbox:
        before = await good(sandbox, LOOK)
        expect(await python(sandbox, LITTER), Outcome.OK)
        await _reset(sandbox)
        after = await good(sandbox, LOOK)
        assert after == before, f"{after!r} instead of {before!r}"
        await sandbox.write_file("big", b"x" * (LIMITS.disk_bytes * 3 // 4))
        await good(sandbox, AGE)
        await _reset(sandbox)
        assert await good(sandbox, LOOK) == before, "something is as it was made before"
        await sandbox.write_file("big", b"x" * (LIMITS.disk_bytes * 3 // 4))


@check(Isolation.NAMESPACES, optional="reset")
async def reset_kills_everything(backend: SandboxBackend) -> None:
    """A reset ends commands and sessions, and no process of before is left."""
    count = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    program = BEAT + "if not os.fork():\n os.setsid()\n os.fork()\nbeat('beat')"
    async with opened(backend) as sandbox:
        before = await good(sandbox, count)
        process = await sandbox.start(("python3", "-I", "-S", "-c", program))
        command = asyncio.create_task(sandbox.exec(("sleep", "600"), timeout_s=SOON.get()))
        await until_beating(sandbox)
        await _reset(sandbox)
        done, _ = await asyncio.wait([command], timeout=SOON.get())
        assert done, "a command of before still waits"
        assert isinstance(command.exception(), SandboxError), repr(command.exception())
        after = await good(sandbox, count)
        assert after == before, f"{after} processes instead of {before}"
        assert await process.close() is None
        await refused(sandbox.read_file("beat"), FileNotFoundError)


SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print([libc.shmget(7, 65536, 0o1666) >= 0, libc.semget(7, 2, 0o1666) >= 0,
       libc.msgget(7, 0o1666) >= 0].count(True))
"""
OBJECTS = """
for kind in ('shm', 'sem', 'msg'):
    try: print(kind, len(open('/proc/sysvipc/' + kind).readlines()) - 1)
    except FileNotFoundError: print(kind, 0)
"""


@check(Isolation.NAMESPACES, optional="reset")
async def reset_clears_shared_memory(backend: SandboxBackend) -> None:
    """System V shared memory, semaphores and queues do not outlive a reset."""
    async with opened(backend) as sandbox:
        await good(sandbox, SYSTEM_V)
        await _reset(sandbox)
        assert (await good(sandbox, OBJECTS)).split() == ["shm", "0", "sem", "0", "msg", "0"]


CONNECT = """
import socket
try:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client, server.accept()[0]:
            pass
except OSError as error: print(error)
"""
CONNECTIONS = """
print(sum(len(open('/proc/net/' + kind).readlines()) - 1 for kind in ('tcp', 'tcp6')))
"""


@check(Isolation.NAMESPACES, optional="reset")
async def reset_leaves_no_connections(backend: SandboxBackend) -> None:
    """After a reset no port is in use; while a connection is not closed, the reset fails."""
    async with opened(backend) as sandbox:
        await good(sandbox, CONNECT)
        try:
            await _reset(sandbox)
        except SandboxError:
            return
        assert (await good(sandbox, CONNECTIONS)).strip() == "0", "a connection outlives the reset"


@check(optional="reset")
async def reset_and_fill(backend: SandboxBackend) -> None:
    """A sandbox that was reset takes a snapshot and keeps its limits."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("d/f", b"one")
        snapshot = await sandbox.snapshot()
        await sandbox.write_file("d/f", b"two")
        await _reset(sandbox)
        await sandbox.fill(snapshot)
        await snapshot.close()
        assert await sandbox.read_file("d/f") == b"one"
        result = await python(sandbox, "kept = [bytes(4 << 20) + b'x' for _ in range(200)]")
        assert result.outcome is Outcome.OOM, brief(result)
