"""Checks of the limits: time, processes, memory, output, disk, open files."""

from __future__ import annotations

import asyncio
import time

from agentrl.sandbox import Isolation, Outcome, SandboxBackend
from agentrl.testing.sandbox_check.check import (
    BEAT,
    LIMITS,
    SOON,
    assert_silent,
    brief,
    check,
    expect,
    good,
    has_begun,
    opened,
    python,
)

MIB = 2**20
TIMES_S = (0.5, 4.0, 30.0)
"""Time limits of a program that is to do something before its end; a later one for a machine so
loaded that it did not get as far."""


@check()
async def timeout_ends_a_command(backend: SandboxBackend) -> None:
    """A command past its time is killed, soon, with exit code None."""
    async with opened(backend) as sandbox:
        start = time.monotonic()
        result = await sandbox.exec(("sleep", "600"), timeout_s=0.3)
        seconds = time.monotonic() - start
    assert (result.outcome, result.exit_code) == (Outcome.TIMEOUT, None), brief(result)
    assert 0.25 < seconds < SOON.get() / 2, f"took {seconds:.2f} s for a limit of 0.3 s"


@check()
async def timeout_keeps_partial_output(backend: SandboxBackend) -> None:
    """Output printed before the time-out comes back."""
    async with opened(backend) as sandbox:
        for timeout_s in TIMES_S:
            result = await sandbox.exec(("sh", "-c", "echo before; sleep 600"), timeout_s=timeout_s)
            if result.outcome is not Outcome.TIMEOUT or result.stdout:
                break
    assert (result.outcome, result.stdout) == (Outcome.TIMEOUT, "before\n"), brief(result)


@check()
async def timeout_beats_signal_handlers(backend: SandboxBackend) -> None:
    """A program that ignores every signal it can, or stops itself, is ended all the same."""
    ignoring = "for n in range(1, 32):\n try: signal.signal(n, signal.SIG_IGN)\n except: pass\n"
    async with opened(backend) as sandbox:
        for program in (
            "import signal, time\n" + ignoring + "time.sleep(600)",
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        ):
            expect(await python(sandbox, program, timeout_s=0.5), Outcome.TIMEOUT)


BEGUN = "while not os.path.exists('beat'): time.sleep(0.01)\n"
CHILD = "if not os.fork(): beat('beat')\n"
GRANDCHILD = "if not os.fork():\n if not os.fork(): beat('beat')\n os.wait()\n"
SESSION = "if not os.fork():\n os.setsid()\n beat('beat')\n"
DAEMON = (
    "if not os.fork():\n os.setsid()\n if os.fork(): os._exit(0)\n"
    " for fd in (0, 1, 2): os.close(fd)\n beat('beat')\nos.wait()\n"
)


async def _nothing_outlives(backend: SandboxBackend, start: str, *, timeout: bool) -> None:
    """Run `start`, then sleep or exit; what it started must be dead afterwards."""
    end = BEGUN + ("time.sleep(600)" if timeout else "")
    async with opened(backend) as sandbox:
        for timeout_s in TIMES_S if timeout else (None,):
            began = time.monotonic()
            result = await python(sandbox, BEAT + start + end, timeout_s=timeout_s)
            expect(result, Outcome.TIMEOUT if timeout else Outcome.OK)
            late_s = time.monotonic() - began - (timeout_s or 0.0)
            assert late_s < SOON.get() / 2, "waited for a process in the background"
            if await has_begun(sandbox):
                break
        await assert_silent(sandbox)


@check()
async def timeout_kills_children(backend: SandboxBackend) -> None:
    """A time-out kills the children of the program."""
    await _nothing_outlives(backend, CHILD, timeout=True)


@check()
async def timeout_kills_grandchildren(backend: SandboxBackend) -> None:
    """A time-out kills the grandchildren of the program."""
    await _nothing_outlives(backend, GRANDCHILD, timeout=True)


@check()
async def timeout_kills_other_sessions(backend: SandboxBackend) -> None:
    """A time-out kills a child that has moved to a session of its own."""
    await _nothing_outlives(backend, SESSION, timeout=True)


@check()
async def timeout_kills_daemons(backend: SandboxBackend) -> None:
    """A time-out kills a process that has detached itself by forking twice."""
    await _nothing_outlives(backend, DAEMON, timeout=True)


@check()
async def exit_kills_children(backend: SandboxBackend) -> None:
    """Children left in the background die with the command, and are not waited for."""
    await _nothing_outlives(backend, CHILD, timeout=False)


@check()
async def exit_kills_daemons(backend: SandboxBackend) -> None:
    """Daemons left behind die with the command."""
    await _nothing_outlives(backend, DAEMON, timeout=False)


@check()
async def killing_the_parent_does_not_help(backend: SandboxBackend) -> None:
    """A program that kills the process that started it frees nothing."""
    program = BEAT + CHILD + BEGUN + "os.kill(os.getppid(), 9)\ntime.sleep(600)"
    async with opened(backend) as sandbox:
        for timeout_s in TIMES_S:
            result = await python(sandbox, program, timeout_s=timeout_s)
            expect(result, Outcome.NONZERO, Outcome.TIMEOUT)
            if await has_begun(sandbox):
                break
        await assert_silent(sandbox)
        expect(await sandbox.exec(("true",)), Outcome.OK)


@check(alone=True)
async def fork_bomb(backend: SandboxBackend) -> None:
    """A fork bomb is ended in time and the sandbox goes on working."""
    program = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    async with opened(backend) as sandbox:
        start = time.monotonic()
        result = await python(sandbox, program, timeout_s=1.0)
        assert result.outcome is not Outcome.OK, brief(result)
        assert time.monotonic() - start < SOON.get(), "it took too long to end"
        assert (await sandbox.exec(("sh", "-c", "echo alive"))).stdout == "alive\n"


@check(alone=True)
async def process_limit(backend: SandboxBackend) -> None:
    """A program cannot have more processes than the limit."""
    program = (
        "import os, time\ncount = 1\n"
        f"for _ in range({4 * LIMITS.processes}):\n"
        " try: pid = os.fork()\n except OSError: break\n"
        " if not pid: time.sleep(600)\n count += 1\n"
        "time.sleep(0.3)\nprint(count)"
    )
    async with opened(backend) as sandbox:
        result = await python(sandbox, program)
    if result.outcome is Outcome.OK:
        count = int(result.stdout)
        assert LIMITS.processes // 2 <= count <= LIMITS.processes, f"{count} processes"


@check()
async def processes_up_to_the_limit(backend: SandboxBackend) -> None:
    """As many processes as the limit allows do run."""
    wanted = LIMITS.processes - 1
    program = (
        f"import os\npids = []\nfor _ in range({wanted}):\n pid = os.fork()\n"
        " if not pid:\n  import time; time.sleep(0.2); os._exit(0)\n pids.append(pid)\n"
        "for pid in pids: os.waitpid(pid, 0)\nprint(len(pids))"
    )
    async with opened(backend) as sandbox:
        assert int(await good(sandbox, program)) == wanted


HOG = "kept = []\nfor _ in range(200): kept.append(b'x' * (4 << 20))"


@check()
async def memory_hog_is_oom(backend: SandboxBackend) -> None:
    """A program that takes more memory than the limit is killed with `oom`, and only it is."""
    async with opened(backend) as sandbox:
        result = await python(sandbox, HOG)
        assert (result.outcome, result.exit_code) == (Outcome.OOM, None), brief(result)
        expect(await sandbox.exec(("true",)), Outcome.OK)


@check()
async def memory_of_children_counts(backend: SandboxBackend) -> None:
    """The memory of all processes together counts, not that of each."""
    each = LIMITS.memory_bytes // MIB // 3
    program = (
        "import os, time\nfor _ in range(6):\n"
        f" if not os.fork():\n  kept = os.urandom({each} << 20); time.sleep(600)\n"
        "time.sleep(600)"
    )
    async with opened(backend) as sandbox:
        expect(await python(sandbox, program), Outcome.OOM)


SEGMENTS = """
import ctypes, time
libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p
for _ in range(40):
    ident = libc.shmget(0, 8 << 20, 0o1600); place = libc.shmat(ident, None, 0)
    if ident < 0: raise SystemExit(3)
    ctypes.memset(place, 1, 8 << 20); libc.shmdt(ctypes.c_void_p(place))
time.sleep(30)
"""
ANONYMOUS_FILES = """
import os, time
for _ in range(40):
    fd = os.memfd_create('x')
    for _ in range(8): os.write(fd, bytes(1 << 20))
time.sleep(30)
"""


@check(Isolation.NAMESPACES)
async def memory_of_no_process_counts(backend: SandboxBackend) -> None:
    """Memory that is attached to no process, in segments or files without a name, is bounded."""
    async with opened(backend) as sandbox:
        for program in (SEGMENTS, ANONYMOUS_FILES):
            result = await python(sandbox, program)
            assert result.outcome is not Outcome.OK, f"320 MiB were kept: {brief(result)}"
            assert (await good(sandbox, "print('alive')")) == "alive\n"


@check()
async def memory_below_the_limit(backend: SandboxBackend) -> None:
    """Two thirds of the memory can be used, also when forks share it."""
    program = (
        f"import os\nkept = b'x' * ({LIMITS.memory_bytes * 2 // 3})\n"
        "for _ in range(3):\n if not os.fork():\n  import time; time.sleep(0.3); os._exit(0)\n"
        "for _ in range(3): os.wait()\nprint(len(kept))"
    )
    async with opened(backend) as sandbox:
        assert int(await good(sandbox, program)) == LIMITS.memory_bytes * 2 // 3


@check()
async def output_flood(backend: SandboxBackend) -> None:
    """Endless output, on stdout or stderr, is ended soon with `output_limit`."""
    async with opened(backend) as sandbox:
        for stream in ("1", "2"):
            program = f"import os\nwhile True: os.write({stream}, b'flood ' * 10000)"
            start = time.monotonic()
            result = await python(sandbox, program)
            assert (result.outcome, result.exit_code) == (Outcome.OUTPUT_LIMIT, None), brief(result)
            assert time.monotonic() - start < SOON.get() / 2, "it was not ended soon"
            kept = result.stdout if stream == "1" else result.stderr
            assert kept.startswith("flood"), ascii(kept[:50])


@check()
async def flood_beside_others(backend: SandboxBackend) -> None:
    """A flood does not hold up a command that runs beside it."""
    flood = "import os\nfor _ in range(2000): os.write(1, b'flood ' * 10000)"
    async with opened(backend) as sandbox:
        task = asyncio.create_task(python(sandbox, flood))
        result = await sandbox.exec(("sh", "-c", "echo calm"))
        await task
    assert result.stdout == "calm\n", brief(result)


FILL = (
    "import sys\ntry:\n with open(sys.argv[1], 'wb', buffering=0) as file:\n"
    "  for _ in range(64):\n   file.write(b'x' * (1 << 20))\nexcept OSError as error:\n"
    " print(error.errno); raise SystemExit(3)"
)


@check()
async def disk_fill(backend: SandboxBackend) -> None:
    """A file cannot grow beyond the disk limit; the program sees an error."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("python3", "-I", "-S", "-c", FILL, "big"))
        assert result.outcome is not Outcome.OK, brief(result)
        size = int(await good(sandbox, "import os; print(os.stat('big').st_size)"))
        assert size <= LIMITS.disk_bytes, f"the file has {size} bytes"
        await good(sandbox, "import os; os.unlink('big'); open('small', 'w').write('x')")


@check()
async def disk_limit_is_for_all_files(backend: SandboxBackend) -> None:
    """Many files together cannot hold more than the limit, whichever directories they are in."""
    program = (
        "import os, time\nfor place in ('.', os.environ['TMPDIR'], os.environ['HOME']):\n"
        " for n in range(8):\n  with open(f'{place}/f{n}', 'wb') as file:\n"
        "   file.write(b'x' * (2 << 20))\n  time.sleep(0.05)\n"
    )
    async with opened(backend) as sandbox:
        result = await python(sandbox, program)
        assert result.outcome is not Outcome.OK, "48 MiB were written to a disk of 16"


@check(Isolation.NAMESPACES)
async def shared_memory_is_disk_too(backend: SandboxBackend) -> None:
    """/dev/shm and /tmp are bounded as well."""
    async with opened(backend) as sandbox:
        for place in ("/dev/shm/big", "/tmp/big"):
            result = await sandbox.exec(("python3", "-I", "-S", "-c", FILL, place))
            assert result.outcome is not Outcome.OK, f"64 MiB were written to {place}"


@check()
async def open_files_limit(backend: SandboxBackend) -> None:
    """A program cannot open more files than the limit."""
    program = (
        "import os\ncount = 0\ntry:\n while True:\n  os.open('/dev/null', 0); count += 1\n"
        "except OSError: print(count)"
    )
    async with opened(backend) as sandbox:
        count = int(await good(sandbox, program))
    assert count < LIMITS.open_files, f"{count} files were open"
