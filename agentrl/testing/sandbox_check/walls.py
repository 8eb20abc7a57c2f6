"""Checks of the walls: what a program must not see, reach or become."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from agentrl.sandbox import Isolation, Outcome, SandboxBackend
from agentrl.testing.sandbox_check.check import check, expect, good, opened, python

WALLS = Isolation.NAMESPACES


@check(WALLS)
async def host_files_are_invisible(backend: SandboxBackend) -> None:
    """Files of the host, in its temporary and home directories too, cannot be read."""
    with tempfile.NamedTemporaryFile(prefix="agentrl-secret-") as secret:
        Path(secret.name).write_text("hunter2")
        Path(secret.name).chmod(0o644)
        paths = [secret.name, "/etc/shadow", str(Path(__file__).resolve()), str(Path.home())]
        program = (
            "import os, sys\nfor path in sys.argv[1:]:\n try:\n"
            "  seen = os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(20)\n"
            "  if seen: print(path, seen)\n"
            " except OSError: pass"
        )
        async with opened(backend) as sandbox:
            result = await sandbox.exec(("python3", "-I", "-S", "-c", program, *paths))
    expect(result, Outcome.OK)
    leaks = [line for line in result.stdout.splitlines() if not _only_the_interpreter(line)]
    assert not leaks, f"visible: {leaks}"


def _only_the_interpreter(line: str) -> bool:
    """A home directory may show as the empty path that leads to the interpreter."""
    path, _, listed = line.partition(" ")
    inner = Path(sys.base_prefix).resolve()
    if Path(path).resolve() not in inner.parents:
        return False
    return listed == repr([inner.relative_to(Path(path).resolve()).parts[0]])


@check(WALLS)
async def network_is_cut_off(backend: SandboxBackend) -> None:
    """Neither the network nor a port of the host's loopback can be reached; its own can."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    program = (
        "import socket\n"
        f"for place in (('127.0.0.1', {port}), ('192.0.2.1', 80), ('8.8.8.8', 53)):\n"
        " try: socket.create_connection(place, timeout=1); print('reached', place)\n"
        " except OSError: pass\n"
        "one = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(one.getsockname(), timeout=1); print('own')"
    )
    try:
        async with opened(backend) as sandbox:
            text = await good(sandbox, program)
    finally:
        server.close()
        await server.wait_closed()
    assert text.split() == ["own"], text


@check(WALLS)
async def machine_below_is_out_of_reach(backend: SandboxBackend) -> None:
    """In a virtual machine, no socket leads to the one below, of which no namespace knows."""
    program = (
        "import socket\ntry: socket.socket(40, socket.SOCK_STREAM); print('reached')\n"
        "except OSError: pass"
    )
    async with opened(backend) as sandbox:
        assert await good(sandbox, program) == ""


@check(WALLS)
async def host_processes_are_out_of_reach(backend: SandboxBackend) -> None:
    """Processes of the host can be neither seen nor killed."""
    token = secrets.token_hex(8)
    host = subprocess.Popen(["sleep", "30"], env={"AGENTRL_TOKEN": token})
    program = (
        "import os\nfor name in os.listdir('/proc'):\n if name.isdigit():\n  try:\n"
        f"   if b'{token}' in open(f'/proc/{{name}}/environ', 'rb').read(): print('seen', name)\n"
        "  except OSError: pass\n"
        f"try: os.kill({host.pid}, 9)\nexcept OSError: pass"
    )
    try:
        async with opened(backend) as sandbox:
            result = await python(sandbox, program)
        expect(result, Outcome.OK)
        assert "seen" not in result.stdout, "a process of the host is visible"
        assert host.poll() is None, "a process of the host was killed"
    finally:
        host.kill()
        await asyncio.to_thread(host.wait)


@check(WALLS)
async def system_is_read_only(backend: SandboxBackend) -> None:
    """Nothing but the writable directories can be written, whatever the permissions are."""
    program = (
        "import os\nfor path in ('/', '/usr', '/usr/bin', '/etc', '/dev', '/opt', '/proc/sys',"
        " os.path.dirname(os.path.realpath('/proc/self/exe'))):\n"
        " try: open(path + '/probe', 'w'); print('wrote', path)\n except OSError: pass"
    )
    async with opened(backend) as sandbox:
        assert await good(sandbox, program) == ""


@check(WALLS)
async def devices_are_harmless(backend: SandboxBackend) -> None:
    """null, zero and urandom work; memory, kernel log and disks are not there."""
    program = (
        "import os, stat\nassert os.read(os.open('/dev/zero', 0), 2) == b'\\0\\0'\n"
        "assert len(os.read(os.open('/dev/urandom', 0), 8)) == 8\n"
        "open('/dev/null', 'w').write('x')\n"
        "for name in os.listdir('/dev'):\n mode = os.stat('/dev/' + name).st_mode\n"
        " if stat.S_ISBLK(mode): print('disk', name)\n"
        " if name in ('mem', 'kmem', 'kmsg', 'port', 'kvm', 'fuse'): print(name)\n"
        "for path in ('/proc/kcore', '/proc/kmsg', '/dev/mem', '/proc/sysrq-trigger'):\n"
        " try: open(path, 'rb').read(1); print(path)\n except OSError: pass"
    )
    async with opened(backend) as sandbox:
        assert await good(sandbox, program) == ""


@check()
async def no_privileges(backend: SandboxBackend) -> None:
    """No capability is in effect, none can be gained, and the program is not the host's root."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("cat", "/proc/self/status"))
        expect(result, Outcome.OK)
        fields = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
        assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0, fields["CapEff"]
        assert fields["NoNewPrivs"] == "1", "a setuid program would gain privileges"
        if os.geteuid() == 0:
            assert fields["Uid"].split()[0] != "0", "the program runs as root"


@check(WALLS)
async def no_mounts_and_no_new_namespaces(backend: SandboxBackend) -> None:
    """A program cannot make a user namespace, in which it could mount what it likes."""
    program = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.unshare(0x10000000), libc.unshare(0x20000), "
        "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))"
    )
    async with opened(backend) as sandbox:
        assert (await good(sandbox, program)).split() == ["-1", "-1", "-1"]


@check(WALLS)
async def supervisor_is_protected(backend: SandboxBackend) -> None:
    """A program that kills, stops or traces everything it sees does not end the sandbox."""
    program = (
        "import os, ctypes\nlibc = ctypes.CDLL(None)\n"
        "for pid in (1, os.getppid()):\n"
        " if libc.ptrace(16, pid, 0, 0) == 0: print('traced', pid)\n"
        " try: open(f'/proc/{pid}/mem', 'r+b'); print('opened', pid)\n except OSError: pass\n"
        "os.kill(-1, 19); os.kill(1, 9); os.kill(-1, 9)"
    )
    async with opened(backend) as sandbox:
        result = await python(sandbox, program, timeout_s=3.0)
        assert "traced" not in result.stdout, result.stdout
        assert "opened" not in result.stdout, result.stdout
        assert (await sandbox.exec(("sh", "-c", "echo alive"))).stdout == "alive\n"


HARM = """
import os, resource
def attempt(what, call, *arguments):
    try: call(*arguments)
    except OSError: return
    print(what)
before = os.getpriority(os.PRIO_PROCESS, 1)
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU):
    attempt('limit', resource.prlimit, 1, kind, (3, 3))
attempt('scheduler', os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
attempt('affinity', os.sched_setaffinity, 1, {min(os.sched_getaffinity(0))})
attempt('priority', os.setpriority, os.PRIO_PROCESS, 1, 19)
try: os.setpriority(os.PRIO_USER, os.getuid(), 19)
except OSError: pass
if os.getpriority(os.PRIO_PROCESS, 1) != before: print('priority')
"""
OWN = """
import os, resource
resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0))
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
wanted = max(15, os.getpriority(os.PRIO_PROCESS, 0))
os.setpriority(os.PRIO_PROCESS, 0, wanted)
print(os.getpriority(os.PRIO_PROCESS, os.getpid()) == wanted)
"""


@check(WALLS)
async def supervisor_is_not_starved(backend: SandboxBackend) -> None:
    """A program takes no files, memory or time from the process that looks after it."""
    async with opened(backend) as sandbox:
        assert await good(sandbox, HARM) == "", "the first process of the sandbox can be limited"
        assert (await sandbox.exec(("sh", "-c", "echo alive"))).stdout == "alive\n"
        assert await good(sandbox, OWN) == "True\n", "a program can do nothing for itself"


THREADS = """
import resource, threading, time
resource.setrlimit(resource.RLIMIT_NPROC, (resource.getrlimit(resource.RLIMIT_NPROC)[1],) * 2)
threading.stack_size(65536)
try:
    for _ in range(400): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
except RuntimeError: pass
time.sleep(600)
"""


@check(WALLS, optional="start", alone=True)
async def sessions_leave_room_for_commands(backend: SandboxBackend) -> None:
    """A program that takes all the threads it can get does not keep commands from starting."""
    async with opened(backend) as sandbox:
        await sandbox.start(("python3", "-I", "-S", "-c", THREADS))
        await asyncio.sleep(0.7)
        for _ in range(3):
            expect(await sandbox.exec(("echo", "alive")), Outcome.OK)


NAMES = """
import os, time
for name in (b'\\x1cRssAnon: x', b'\\x0cSigIgn: x', b') x\\n) Z 1 1'):
    if os.fork():
        open('/proc/self/comm', 'wb').write(name)
        break
time.sleep(600)
"""
"""Names with the separators that Python's `splitlines` knows, so that they look like lines."""


@check()
async def names_are_not_believed(backend: SandboxBackend) -> None:
    """A process whose name looks like words of the kernel is ended like any other."""
    async with opened(backend) as sandbox:
        expect(await python(sandbox, NAMES, timeout_s=0.7), Outcome.TIMEOUT)
        assert (await sandbox.exec(("sh", "-c", "echo alive"))).stdout == "alive\n"


@check()
async def sandboxes_are_apart(backend: SandboxBackend) -> None:
    """Files that one sandbox writes are not in the work directory of another."""
    async with opened(backend) as one, opened(backend) as two:
        await one.write_file("mine", b"x")
        with contextlib.suppress(FileNotFoundError):
            await two.read_file("mine")
            raise AssertionError("a file of another sandbox was read")
        assert (await two.exec(("ls", "-A"))).stdout == "", "the work directory is not empty"


@check(WALLS, alone=True)
async def a_bomb_does_not_starve_siblings(backend: SandboxBackend) -> None:
    """A fork bomb in one sandbox does not keep another from starting processes."""
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    async with opened(backend) as one, opened(backend) as two:
        task = asyncio.create_task(python(one, bomb, timeout_s=1.0))
        await asyncio.sleep(0.3)
        result = await two.exec(("sh", "-c", "for i in 1 2 3 4 5; do (echo $i); done"))
        await task
    assert result.stdout.split() == ["1", "2", "3", "4", "5"], result
