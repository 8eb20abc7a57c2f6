"""Checks of `Sandbox.start`: programs that stay, are talked to, and end with all they started."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import AsyncIterator, Sequence

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, Process, Sandbox, SandboxBackend
from agentrl.testing.sandbox_check.check import (
    BEAT,
    LIMITS,
    SOON,
    assert_silent,
    check,
    expect,
    opened,
    refused,
    until_beating,
    until_true,
)

PYTHON = ("python3", "-I", "-S", "-u", "-c")


@contextlib.asynccontextmanager
async def started(sandbox: Sandbox, *command: str) -> AsyncIterator[Process]:
    """A program for the time of a `with` block."""
    process = await sandbox.start(command)
    try:
        yield process
    finally:
        await process.close()


async def until(process: Process, wanted: bytes) -> bytes:
    """Read until something was printed."""
    seen = b""
    async with asyncio.timeout(SOON.get()):
        while wanted not in seen:
            data = await process.read(timeout_s=SOON.get())
            assert data, f"it ended after {seen[-300:]!r}, without {wanted!r}"
            seen += data
    return seen


async def rest(process: Process) -> bytes:
    """Read to the end."""
    seen = b""
    while data := await process.read(timeout_s=SOON.get()):
        seen += data
    return seen


@check(optional="start")
async def session_echo(backend: SandboxBackend) -> None:
    """Bytes given to a program that stays come back as it prints them, binary ones too."""
    async with opened(backend) as sandbox, started(sandbox, "cat") as process:
        for data in (b"hello\n", b"\x00\xff\r\n", os.urandom(200_000) + b"end"):
            await process.write(data)
            seen = await until(process, data[-3:])
            while len(seen) < len(data):
                seen += await process.read(timeout_s=SOON.get())
            assert seen == data, f"{len(seen)} bytes of {len(data)} came back, or others"


@check(optional="start")
async def session_keeps_its_state(backend: SandboxBackend) -> None:
    """A shell keeps its directory and variables from one line to the next, and prints at once."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("sub/file", b"x")
        process = await sandbox.start(("sh",), cwd="sub", env={"GIVEN": "a b"})
        await process.write(b'kept=7; cd ..; echo "$GIVEN" now\n')
        assert await until(process, b"now\n") == b"a b now\n"
        await process.write(b"echo $kept $PWD; echo oops >&2\n")
        assert await until(process, b"oops\n") == f"7 {sandbox.workdir}\noops\n".encode()
        await process.close()


@check(optional="start")
async def session_silence_is_a_timeout(backend: SandboxBackend) -> None:
    """Reading from a silent program raises `TimeoutError` in time, and loses nothing."""
    async with opened(backend) as sandbox:
        async with started(sandbox, "sh", "-c", "read x; echo got $x") as process:
            begin = time.monotonic()
            await refused(process.read(timeout_s=0.2), TimeoutError)
            assert time.monotonic() - begin < SOON.get() / 2, "it waited longer than it was told to"
            await process.write(b"it\n")
            assert await rest(process) == b"got it\n"


@check(optional="start")
async def session_end_is_seen(backend: SandboxBackend) -> None:
    """The end of the program ends the output, and its status comes back, however it ended."""
    async with opened(backend) as sandbox:
        for script, wanted in (("echo bye; exit 7", 7), ("exit 0", 0), ("kill -9 $$", -9)):
            process = await sandbox.start(("sh", "-c", f"sleep 600 & {script}"))
            seen = await asyncio.wait_for(rest(process), SOON.get())
            assert seen == (b"bye\n" if wanted == 7 else b""), repr(seen)
            assert await process.read(timeout_s=0.1) == b"", "the end was seen only once"
            await refused(process.write(b"x"), BrokenPipeError)
            status = await process.close()
            assert status == wanted == await process.close(), f"{status} instead of {wanted}"
            ended = Outcome.OK if wanted == 0 else Outcome.NONZERO
            assert process.outcome in (ended, None), process.outcome


@check(optional="start")
async def session_of_a_missing_program(backend: SandboxBackend) -> None:
    """A program that is not there writes so and has ended, as a command does."""
    async with opened(backend) as sandbox:
        process = await sandbox.start(("no-such-program-here",))
        seen = await rest(process)
        assert b"no-such-program-here" in seen, repr(seen)
        assert await process.close() not in (0, None), "it counts as a success"
        await refused(sandbox.start(()), ValueError)


@check(optional="start")
async def session_interrupt(backend: SandboxBackend) -> None:
    """An interrupt ends what a shell runs and not the shell, or the program if it runs nothing.

    What is in the background, and so ignores interrupts, does not count.
    """
    async with opened(backend) as sandbox:
        async with started(sandbox, "sh") as process:
            # Each tells that it has begun: a job ignores interrupts only once it runs.
            await process.write(b"sh -c 'echo beside; exec sleep 600' &\n")
            await until(process, b"beside\n")
            await process.write(b"sh -c 'echo begun; exec sleep 600'; kill -0 $! && echo over\n")
            await until(process, b"begun\n")
            await process.interrupt()
            await until(process, b"over\n")
            await process.write(b"echo alive\n")
            await until(process, b"alive\n")
        program = (
            "import os, signal, time\n"
            "signal.signal(2, signal.SIG_IGN)\nif not os.fork(): time.sleep(600)\n"
            "signal.signal(2, signal.default_int_handler)\n"
            "try:\n print('begun'); time.sleep(600)\nexcept KeyboardInterrupt:\n"
        )
        async with started(sandbox, *PYTHON, program + " print('caught')") as process:
            await until(process, b"begun\n")
            await process.interrupt()
            assert await rest(process) == b"caught\n"


@check(optional="start")
async def session_close_kills_everything(backend: SandboxBackend) -> None:
    """Closing kills the program, its children and its daemons, whatever they ignore."""
    program = (
        "import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "if not os.fork():\n os.setsid()\n if os.fork(): os._exit(0)\n beat('daemon')\n"
        "if not os.fork(): beat('child')\nbeat('beat')"
    )
    names = ("beat", "child", "daemon")
    async with opened(backend) as sandbox:
        process = await sandbox.start((*PYTHON, BEAT + program))
        for name in names:
            await until_beating(sandbox, name)
        start = time.monotonic()
        assert await process.close() is None, "it was killed, and a status came back"
        assert time.monotonic() - start < SOON.get(), "closing took too long"
        for name in names:
            await assert_silent(sandbox, name)
        await refused(process.read(timeout_s=1.0), SandboxError)
        expect(await sandbox.exec(("true",)), Outcome.OK)


FLOOD = 200 * 2**20


@check(optional="start", alone=True)
async def session_flood(backend: SandboxBackend) -> None:
    """200 MB that are not read hold up the program and nothing else; then all of it can be read."""
    program = (
        f"import os\nblock = bytes(65536)\nfor n in range({FLOOD} // 65536):\n"
        " done = 0\n while done < 65536: done += os.write(1, block[done:])\n"
        " if n % 4 == 0:\n  with open('progress', 'w') as file: file.write(str(n))\n"
    )
    async with opened(backend) as sandbox, started(sandbox, *PYTHON, program) as process:
        size = len(await until(process, b"\0"))
        before, now = b"", b""
        while not now or now != before:
            await asyncio.sleep(0.5)
            before, now = now, await sandbox.read_file("progress")
        assert (await sandbox.exec(("echo", "calm"))).stdout == "calm\n"
        taken = 65536 * int(await sandbox.read_file("progress"))
        assert taken < FLOOD // 8, f"{taken} bytes were taken without a reader"
        while data := await process.read(timeout_s=SOON.get()):
            size += len(data)
        assert size == FLOOD, f"{size} bytes of {FLOOD} could be read"
        assert await process.close() == 0


@check(optional="start")
async def session_output_outlives_its_program(backend: SandboxBackend) -> None:
    """Output of a program that has ended is there to be read long afterwards, all of it."""
    async with opened(backend) as sandbox:
        process = await sandbox.start((*PYTHON, "import os; os.write(1, bytes(300_000))"))
        await asyncio.sleep(1.6)
        seen = await rest(process)
        assert seen == bytes(300_000), f"{len(seen)} bytes of 300000"
        assert await process.close() == 0


@check(optional="start")
async def session_that_does_not_read(backend: SandboxBackend) -> None:
    """Writing waits for a program that does not read, alone; one that does gets every byte."""
    data = os.urandom(2**20) * 8
    program = (
        "import sys, hashlib\nprint('up')\n"
        f"print(hashlib.sha256(sys.stdin.buffer.read({len(data)})).hexdigest())"
    )
    async with opened(backend) as sandbox:
        async with started(sandbox, "sleep", "600") as process:
            await refused(asyncio.wait_for(process.write(data), 0.4), TimeoutError)
            expect(await sandbox.exec(("true",)), Outcome.OK)
        async with started(sandbox, "sh", "-c", "exec <&-; sleep 600") as process:
            await refused(asyncio.wait_for(process.write(data), SOON.get()), BrokenPipeError)
        async with started(sandbox, *PYTHON, program) as process:
            await asyncio.wait_for(process.write(data), SOON.get())
            assert hashlib.sha256(data).hexdigest().encode() in await rest(process)


@check(optional="start")
async def sessions_side_by_side(backend: SandboxBackend) -> None:
    """Two sessions and commands do not mix, and the end of one leaves the others alone."""
    async with opened(backend) as sandbox, started(sandbox, "sh") as one:
        two = await sandbox.start((*PYTHON, BEAT + "os.fork()\nbeat('beat')"))
        await until_beating(sandbox)
        expect(await sandbox.exec(("sleep", "600"), timeout_s=0.2), Outcome.TIMEOUT)
        await one.write(b"echo one\n")
        assert await until(one, b"one\n") == b"one\n"
        before = len(await sandbox.read_file("beat"))

        async def goes_on() -> bool:
            return len(await sandbox.read_file("beat")) > before

        await until_true(goes_on, "a command ended a session: nothing was written")
        await two.close()
        await assert_silent(sandbox)
        await one.write(b"echo still\n")
        await until(one, b"still\n")


@check(optional="start")
async def session_outlives_wall_s(backend: SandboxBackend) -> None:
    """The time limit of commands is not one of programs that stay."""
    limits = dataclasses.replace(LIMITS, wall_s=0.5)
    async with opened(backend, limits) as sandbox, started(sandbox, "cat") as process:
        await asyncio.sleep(1.2)
        await process.write(b"alive\n")
        await until(process, b"alive\n")


@check(optional="start", alone=True)
async def session_limits(backend: SandboxBackend) -> None:
    """Memory and processes of a session count: it is ended, and the sandbox goes on."""
    hog = "kept = []\nfor _ in range(200): kept.append(b'x' * (4 << 20))\nprint('survived')"
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    async with opened(backend) as sandbox:
        for program, status in ((hog, None), (bomb, ...)):
            process = await sandbox.start((*PYTHON, program))
            if status is None:
                assert b"survived" not in await rest(process)
            else:
                await asyncio.sleep(1.0)
            ended = await process.close()
            assert status is ... or ended is None, f"{ended}, expected None for a killed one"
            assert (await sandbox.exec(("echo", "alive"))).stdout == "alive\n"


@check(optional="start")
async def session_ends_with_its_sandbox(backend: SandboxBackend) -> None:
    """Closing the sandbox ends its sessions: pending calls get `SandboxError`, soon."""
    calls: Sequence[asyncio.Task[object]]
    async with opened(backend) as sandbox:
        process = await sandbox.start(("sleep", "600"))
        calls = (
            asyncio.create_task(process.read(timeout_s=600.0)),
            asyncio.create_task(process.write(bytes(2**22))),
        )
        await asyncio.sleep(0.1)
        await sandbox.close()
        done, _ = await asyncio.wait(calls, timeout=SOON.get())
    assert len(done) == 2, "a call still waits"
    for call in calls:
        assert isinstance(call.exception(), SandboxError), repr(call.exception())
    await refused(process.read(timeout_s=1.0), SandboxError)
    assert await process.close() is None
