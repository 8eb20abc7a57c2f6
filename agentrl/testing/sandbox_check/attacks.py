"""Checks of classes of attacks on what looks after a program: shapes of trees, held memory.

Each class is a list of programs. A backend passes if every one of them is held or ended, and the
sandbox goes on working for its owner afterwards.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.sandbox import Isolation, Outcome, Sandbox, SandboxBackend
from agentrl.testing.sandbox_check.check import (
    LIMITS,
    SOON,
    brief,
    check,
    expect,
    good,
    opened,
    python,
)

CHAIN = """
import os
os.symlink('l1', 'l0')
for n in range(1, 1200): os.symlink(f'l{n + 1}', f'l{n}')
open('l1200', 'w').write('x')
os.makedirs('t')
os.symlink('../l0', 't/l0')
"""
CHAIN_OF_DIRECTORIES = """
import os
os.mkdir('l1200')
for n in range(1199, -1, -1): os.symlink(f'l{n + 1}/.', f'l{n}')
"""
LOOPS = """
import os
os.symlink('l0', 'l0'); os.symlink('b', 'a'); os.symlink('a', 'b'); os.mkdir('t')
os.symlink('../t/t', 't/t')
"""
LONG_WAYS = """
import os
os.mkdir('d')
for n in range(60): os.symlink('d/../' * 800 + f'l{n + 1}', f'l{n}')
os.mkdir('l60'); os.mkdir('t')
"""
"""Each link alone can be followed; together they are a way of 50,000 names."""
DEEP = """
import os
os.mkdir('t'); os.chdir('t')
for n in range(3000): os.mkdir('d' * 50); os.chdir('d' * 50)
open('bottom', 'w').write('x')
"""
WIDE = """
import os
os.mkdir('t')
for n in range(3000): os.mkdir(f't/{n}'); open(f't/{n}/f', 'w')
"""
ODD_FILES = """
import os, socket
os.mkdir('t'); os.mkfifo('l0'); os.mkfifo('t/p')
socket.socket(socket.AF_UNIX).bind('t/s')
os.symlink('/proc/self/mem', 't/m'); os.symlink('/dev/zero', 't/z')
for name in (b'\\xff\\n', b'\\x00'[1:] + b'n' * 255, b'-rf'): os.close(os.open(b't/' + name, 65))
"""
SWAPPED = """
import os, shutil
os.mkdir('../other'); os.rename('../work', '../was'); os.symlink('/etc', '../work')
"""
TREES = (CHAIN, CHAIN_OF_DIRECTORIES, LOOPS, LONG_WAYS, DEEP, WIDE, ODD_FILES, SWAPPED)
"""Programs that leave something behind which requests for files then meet."""


def _requests(sandbox: Sandbox, source: Path) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    """Every request for files, as a program would like it to be made."""
    return [
        ("read", lambda: sandbox.read_file("l0")),
        ("read below", lambda: sandbox.read_file("l0/f")),
        ("write", lambda: sandbox.write_file("l0", b"x")),
        ("write below", lambda: sandbox.write_file("l0/a/b", b"x")),
        ("upload", lambda: sandbox.upload(source, "l0/tree")),
        ("upload onto", lambda: sandbox.upload(source, "l0")),
        ("snapshot", lambda: sandbox.snapshot()),
        ("download", lambda: sandbox.download("t", max_bytes=2**20)),
        ("download of a link", lambda: sandbox.download("l0", max_bytes=2**20)),
        ("download of all", lambda: sandbox.download(".", max_bytes=2**20)),
    ]


@check()
async def trees_of_any_shape_end_no_sandbox(backend: SandboxBackend) -> None:
    """Links in chains and loops, and trees of any depth, fail the request that meets them alone."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "f").write_bytes(b"x")
        await asyncio.gather(*(_meets(backend, tree, Path(place)) for tree in TREES))


async def _meets(backend: SandboxBackend, tree: str, source: Path) -> None:
    async with opened(backend) as sandbox:
        made = await python(sandbox, tree)
        # A backend may forbid the program to make some of it.
        expect(made, Outcome.OK, Outcome.NONZERO)
        for name, request in _requests(sandbox, source):
            try:
                found = await asyncio.wait_for(request(), SOON.get())
            except (SandboxError, TimeoutError) as error:
                raise AssertionError(f"{name} after {tree!r}: {error!r}") from error
            except (OSError, ValueError):
                continue
            if tree is SWAPPED and made.outcome is Outcome.OK and isinstance(found, bytes | dict):
                assert not found, f"{name} gave something from outside the work directory"
        alive = await sandbox.exec(("echo", "alive"))
        assert alive.stdout == "alive\n", brief(alive)


MOST = LIMITS.memory_bytes * 3 // 2
HELD = f"""
import array, ctypes, fcntl, mmap, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
def held(size):
    print(size, flush=True)
    if size > {MOST}: time.sleep(30)
def touch(place, size):
    for at in range(0, size, 4096): place[at] = 1
def each(call, most):
    total = 0
    try:
        for number in range(most): total += call(number)
    except OSError: pass
    return total
"""
"""What the programs below share. Each takes memory that belongs to no process, as much as it can,
says how many bytes it holds, and waits to be ended if that is too much."""

DROPPED_PAGES = """
kept = []
def one(_):
    place = mmap.mmap(-1, 8 * MIB); touch(place, 8 * MIB)
    place.madvise(mmap.MADV_DONTNEED); kept.append(place)
    return 8 * MIB
held(each(one, 40))
"""
UNMAPPED_PAGES = """
def one(_):
    call = libc.mmap; call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    place = call(None, 8 * MIB, 3, 0x21, -1, 0)
    if place == ctypes.c_void_p(-1).value: raise OSError
    for at in range(0, 8 * MIB, 4096): ctypes.c_char.from_address(place + at).value = b'x'
    libc.munmap(ctypes.c_void_p(place + 4096), ctypes.c_size_t(8 * MIB - 4096))
    return 8 * MIB
held(each(one, 40))
"""
MAPPED_ZERO = """
kept = []
def one(_):
    with open('/dev/zero', 'r+b', buffering=0) as file: place = mmap.mmap(file.fileno(), 8 * MIB)
    touch(place, 8 * MIB); place.madvise(mmap.MADV_DONTNEED); kept.append(place)
    return 8 * MIB
held(each(one, 40))
"""
LENT_PAGES = """
class Piece(ctypes.Structure): _fields_ = [('at', ctypes.c_void_p), ('size', ctypes.c_size_t)]
kept = []
def one(_):
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    place = mmap.mmap(-1, 32 * MIB, flags=private); place.madvise(14)
    touch(place, 32 * MIB)
    start = ctypes.addressof(ctypes.c_char.from_buffer(place))
    ends = os.pipe(); kept.append(ends)
    for n in range(15):
        piece = Piece(start + n * 2 * MIB, 4096)
        if libc.vmsplice(ends[1], ctypes.byref(piece), 1, 0) < 0: raise OSError
    libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(32 * MIB))
    return 32 * MIB
held(each(one, 10))
"""
SEMAPHORES = """
def one(_):
    if libc.semget(0, 32000, 0o1600) < 0: raise OSError
    return 32000 * 64
held(each(one, 200))
"""
ATTACHED_SEGMENTS = """
libc.shmat.restype = ctypes.c_void_p
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def one(_):
    ident = libc.shmget(0, 8 * MIB, 0o1600)
    if ident < 0: raise OSError
    place = libc.shmat(ident, None, 0)
    ctypes.memset(place, 1, 8 * MIB); libc.madvise(place, 8 * MIB, 4)
    return 8 * MIB
held(each(one, 40))
"""
MESSAGES = """
class Message(ctypes.Structure):
    _fields_ = [('kind', ctypes.c_long), ('text', ctypes.c_char * 8192)]
message = Message(1)
def one(_):
    queue = libc.msgget(0, 0o1600)
    if queue < 0: raise OSError
    sent = 0
    while libc.msgsnd(queue, ctypes.byref(message), 8000, 0o4000) == 0: sent += 8000
    return sent
held(each(one, 20000))
"""
FORKS = """
ends = os.pipe()
for _ in range(18):
    if not os.fork():
        os.write(ends[1], b'%12d' % each(one, 25)); time.sleep(600); os._exit(0)
total = sum(int(os.read(ends[0], 12)) for _ in range(18))
held(total)
"""
STREAMS = (
    """
kept = []
def one(number):
    a, b = socket.socketpair(); sent = 0
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26); a.setblocking(False)
    try:
        while True: sent += a.send(bytes(65536))
    except OSError: pass
    kept.append(b)
    if number % 2: kept.append(a)
    return sent
"""
    + FORKS
)
DATAGRAMS = (
    """
kept = []
def one(number):
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); sent = 0
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26); a.setblocking(False)
    try:
        sent += a.send(b'x')
        while True: sent += a.send(bytes(200000))
    except OSError: pass
    kept.append(b)
    return sent
"""
    + FORKS
)
CONNECTIONS = (
    """
kept = []
listener = socket.create_server(('127.0.0.1', 0), backlog=1000)
def one(_):
    a = socket.socket(); a.settimeout(1.0)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
    a.connect(listener.getsockname()); a.setblocking(False); sent = 0
    try:
        while True: sent += a.send(bytes(65536))
    except OSError: pass
    kept.append(a)
    return sent
"""
    + FORKS
)
OF_NO_PROCESS = (
    *(DROPPED_PAGES, UNMAPPED_PAGES, MAPPED_ZERO, LENT_PAGES, SEMAPHORES, ATTACHED_SEGMENTS),
    *(MESSAGES, STREAMS, DATAGRAMS, CONNECTIONS),
)
"""Programs that take memory which the kernel attributes to no process."""


@check(Isolation.NAMESPACES, alone=True)
async def memory_of_every_kind_is_bounded(backend: SandboxBackend) -> None:
    """Memory that no process is charged for is refused, or ends the program, or stays in bounds.

    Shared pages given back or no longer mapped, pages lent to pipes, semaphores, segments, queues
    of messages, and what waits in unix and inet sockets.
    """
    async with opened(backend) as sandbox:
        for program in OF_NO_PROCESS:
            await _stays_in_bounds(sandbox, HELD + program)


async def _stays_in_bounds(sandbox: Sandbox, program: str) -> None:
    """The program is ended, or holds at most half as much again as the limit; nothing stays."""
    result = await python(sandbox, program)
    size = int(result.stdout) if result.stdout.strip().isdigit() else 0
    assert result.outcome is not Outcome.OK or size <= MOST, (
        f"{size / 2**20:.0f} MiB were held at a limit of {LIMITS.memory_bytes / 2**20:.0f}, by "
        f"{program.removeprefix(HELD)!r}"
    )
    after = await python(sandbox, "import time; time.sleep(0.1); print('alive')")
    assert after.stdout == "alive\n", f"{brief(after)} after {program.removeprefix(HELD)!r}"


EMPTY_FILES = """
import os
made = 0
try:
    for place in ('.', os.environ['TMPDIR'], os.environ['HOME']):
        for n in range(60):
            os.mkdir(f'{place}/d{n}')
            for m in range(1000):
                os.close(os.open(f'{place}/d{n}/f{m}', os.O_CREAT | os.O_WRONLY)); made += 1
except OSError: pass
print(made)
"""
EMPTY_LINKS = EMPTY_FILES.replace(
    "os.close(os.open(f'{place}/d{n}/f{m}', os.O_CREAT | os.O_WRONLY))",
    "os.symlink('x', f'{place}/d{n}/f{m}')",
)


@check(alone=True)
async def files_without_content_are_bounded(backend: SandboxBackend) -> None:
    """A file takes memory or disk also when it is empty, so that there cannot be any number."""
    for program in (EMPTY_FILES, EMPTY_LINKS):
        async with opened(backend) as sandbox:
            result = await python(sandbox, program)
            made = int(result.stdout) if result.stdout.strip().isdigit() else 0
            most = 2 * LIMITS.disk_bytes // 1024
            assert result.outcome is not Outcome.OK or made <= most, (
                f"{made} files were made on a disk of {LIMITS.disk_bytes} bytes"
            )
            await good(sandbox, "import shutil; shutil.rmtree('d0'); open('small', 'w').write('x')")
