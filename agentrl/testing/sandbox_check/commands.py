"""Checks of `Sandbox.exec`: what goes in, what comes out, and how a command ends."""

from __future__ import annotations

import asyncio
import hashlib
import os

from agentrl.errors import SandboxError
from agentrl.sandbox import Outcome, SandboxBackend
from agentrl.testing.sandbox_check.check import (
    BEAT,
    LIMITS,
    SOON,
    assert_silent,
    brief,
    check,
    expect,
    good,
    opened,
    python,
    until_beating,
)


@check()
async def output_is_captured(backend: SandboxBackend) -> None:
    """stdout, stderr and exit status 0 come back."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("sh", "-c", "printf out; printf err >&2"))
    expect(result, Outcome.OK)
    assert (result.stdout, result.stderr, result.exit_code) == ("out", "err", 0), brief(result)


@check()
async def exit_status_is_kept(backend: SandboxBackend) -> None:
    """Another exit status is `nonzero` with that number."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("sh", "-c", "exit 37"))
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO, 37), brief(result)


@check()
async def own_signals_are_negative(backend: SandboxBackend) -> None:
    """A program that ends by a signal of its own is `nonzero` with the negative number."""
    async with opened(backend) as sandbox:
        for number in (9, 11, 15):
            result = await sandbox.exec(("sh", "-c", f"kill -{number} $$"))
            assert (result.outcome, result.exit_code) == (Outcome.NONZERO, -number), brief(result)


@check()
async def missing_program_is_a_result(backend: SandboxBackend) -> None:
    """A program that is not there is the caller's mistake, not the sandbox's failure."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("no-such-program-here",))
    expect(result, Outcome.NONZERO)
    assert "no-such-program-here" in result.stderr, brief(result)


@check()
async def file_without_execute_permission(backend: SandboxBackend) -> None:
    """A file that may not be executed is a result, too."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("plain.txt", b"echo no\n")
        expect(await sandbox.exec(("./plain.txt",)), Outcome.NONZERO)


@check()
async def bad_requests_are_refused(backend: SandboxBackend) -> None:
    """An empty command and a time-out above the limit are `ValueError`."""
    async with opened(backend) as sandbox:
        for command, timeout_s in (((), None), (("true",), LIMITS.wall_s + 1), (("true",), 0)):
            try:
                await sandbox.exec(command, timeout_s=timeout_s)
            except ValueError:
                continue
            raise AssertionError(f"exec({command!r}, timeout_s={timeout_s}) was accepted")


@check()
async def arguments_arrive_verbatim(backend: SandboxBackend) -> None:
    """Quotes, spaces, new lines, dollars, an empty argument and other scripts pass unchanged."""
    words = [
        "a b",
        "",
        "'\"`$HOME",
        "line\nline",
        "-rf",
        "\N{SNOWMAN}\N{CJK UNIFIED IDEOGRAPH-6F22}",
    ]
    program = "import sys; print(ascii(sys.argv[1:]))"
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("python3", "-I", "-S", "-c", program, *words))
    assert result.stdout.strip() == ascii(words), brief(result)


@check()
async def environment_is_cut_off(backend: SandboxBackend) -> None:
    """Nothing of the host's environment is inherited; the entries of `env` are added."""
    os.environ["AGENTRL_CHECK_SECRET"] = "hunter2"
    try:
        async with opened(backend) as sandbox:
            result = await sandbox.exec(("env",), env={"EXTRA": "x=1 y"})
    finally:
        del os.environ["AGENTRL_CHECK_SECRET"]
    assert "hunter2" not in result.stdout, "a variable of the host is visible"
    assert "EXTRA=x=1 y" in result.stdout.splitlines(), brief(result)
    assert "PATH=" in result.stdout, brief(result)


@check()
async def cwd_is_the_work_directory(backend: SandboxBackend) -> None:
    """Programs start in the work directory, or below it if asked to."""
    async with opened(backend) as sandbox:
        await sandbox.write_file("sub/file", b"x")
        here = await sandbox.exec(("pwd",))
        there = await sandbox.exec(("pwd",), cwd="sub")
    assert here.stdout.strip() == sandbox.workdir, brief(here)
    assert there.stdout.strip() == f"{sandbox.workdir}/sub", brief(there)


@check()
async def python_is_there(backend: SandboxBackend) -> None:
    """`python3` is found on PATH with its standard library, also without isolated mode."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("python3", "-c", "import json, math, decimal; print(2 ** 5)"))
    assert result.stdout == "32\n", brief(result)


@check()
async def stdin_reaches_the_program(backend: SandboxBackend) -> None:
    """stdin arrives byte for byte and then ends; without one it ends at once."""
    async with opened(backend) as sandbox:
        text = await good(
            sandbox, "import sys; print(sys.stdin.buffer.read())", stdin=b"\x00\xffa\n"
        )
        assert text.strip() == repr(b"\x00\xffa\n"), text
        assert (await sandbox.exec(("cat",))).stdout == ""


@check()
async def huge_stdin(backend: SandboxBackend) -> None:
    """Twenty megabytes of stdin arrive whole."""
    data = os.urandom(2**20) * 20
    program = (
        "import sys, hashlib\n"
        "h = hashlib.sha256()\n"
        "while b := sys.stdin.buffer.read(65536): h.update(b)\n"
        "print(h.hexdigest())"
    )
    async with opened(backend) as sandbox:
        text = await good(sandbox, program, stdin=data)
    assert text.strip() == hashlib.sha256(data).hexdigest(), "stdin was changed on its way"


@check()
async def unread_stdin(backend: SandboxBackend) -> None:
    """A program that does not read its stdin ends normally all the same."""
    async with opened(backend) as sandbox:
        expect(await sandbox.exec(("true",), stdin=b"x" * 2**22), Outcome.OK)


@check()
async def bytes_that_are_not_text(backend: SandboxBackend) -> None:
    """Output that is not UTF-8 is decoded with replacement, never an error."""
    async with opened(backend) as sandbox:
        result = await sandbox.exec(("printf", "a\\377b"))
    assert result.stdout == "a\N{REPLACEMENT CHARACTER}b", brief(result)


@check()
async def utf8_split_over_chunks(backend: SandboxBackend) -> None:
    """A character written byte by byte, slowly, comes back whole."""
    program = (
        "import os, time\n"
        "for b in '\\u00e9\\u6f22\\U0001f600'.encode():\n"
        "    os.write(1, bytes([b])); time.sleep(0.01)"
    )
    async with opened(backend) as sandbox:
        text = await good(sandbox, program)
    assert text == "\u00e9\u6f22\U0001f600", ascii(text)


@check()
async def long_output_keeps_both_ends(backend: SandboxBackend) -> None:
    """Of long output the beginning and the end are kept, marked, and no character is split."""
    program = "print('BEGIN' + '\\u6f22' * 20000 + 'END')"
    async with opened(backend) as sandbox:
        result = await python(sandbox, program)
    expect(result, Outcome.OK)
    assert result.stdout_truncated, "not marked as truncated"
    assert not result.stderr_truncated, "stderr is marked as truncated"
    assert result.stdout.startswith("BEGIN"), ascii(result.stdout[:80])
    assert result.stdout.rstrip().endswith("END"), ascii(result.stdout[-80:])
    assert "\N{REPLACEMENT CHARACTER}" not in result.stdout, "a character was cut in two"
    size = len(result.stdout.encode())
    assert size <= LIMITS.output_bytes + 200, f"{size} bytes kept"


@check()
async def output_within_the_limit_is_whole(backend: SandboxBackend) -> None:
    """Output of exactly the limit comes back unchanged."""
    async with opened(backend) as sandbox:
        text = await good(sandbox, f"print('x' * {LIMITS.output_bytes - 1})")
    assert text == "x" * (LIMITS.output_bytes - 1) + "\n", f"got {len(text)} characters"


@check()
async def concurrent_commands(backend: SandboxBackend) -> None:
    """Commands of one sandbox run at the same time and do not mix their output."""
    async with opened(backend) as sandbox:
        wait = "for n in 0 1 2 3 4 5; do until [ -e $n ]; do sleep 0.05; done; done"
        commands = (("sh", "-c", f": >{n}; {wait}; echo {n}") for n in range(6))
        results = await asyncio.gather(*(sandbox.exec(command) for command in commands))
    # Each of them waits until all have begun.
    assert [r.stdout.strip() for r in results] == [str(n) for n in range(6)], "they ran one by one"


@check()
async def stdin_ends_beside_others(backend: SandboxBackend) -> None:
    """A command started beside another does not keep the other's stdin open."""
    slow = "import sys, time; time.sleep(0.3); print(len(sys.stdin.buffer.read()))"
    async with opened(backend) as sandbox:
        reader = asyncio.create_task(python(sandbox, slow, stdin=b"x" * 2**20, timeout_s=30.0))
        await asyncio.sleep(0.1)
        other = asyncio.create_task(sandbox.exec(("sleep", "600")))
        result = await reader
        other.cancel()
        await asyncio.wait([other])
    assert result.stdout == f"{2**20}\n", brief(result)


@check()
async def commands_do_not_end_each_other(backend: SandboxBackend) -> None:
    """The end of one command, or its time-out, leaves another that runs beside it alone."""
    async with opened(backend) as sandbox:
        wait = "until [ -e ended ]; do sleep 0.05; done; echo done"
        other = asyncio.create_task(sandbox.exec(("sh", "-c", wait)))
        await sandbox.exec(("true",))
        timed = await sandbox.exec(("sleep", "30"), timeout_s=0.2)
        expect(timed, Outcome.TIMEOUT)
        await sandbox.write_file("ended", b"")
        result = await other
    assert (result.outcome, result.stdout) == (Outcome.OK, "done\n"), brief(result)


@check()
async def cancelled_command_is_killed(backend: SandboxBackend) -> None:
    """Cancelling the coroutine of a command kills the command; the sandbox lives on."""
    async with opened(backend) as sandbox:
        task = asyncio.create_task(python(sandbox, BEAT + "beat('beat')"))
        await until_beating(sandbox)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), "the cancellation was swallowed"
        await asyncio.sleep(0.3)
        await assert_silent(sandbox)
        expect(await sandbox.exec(("true",)), Outcome.OK)


@check()
async def close_during_a_command(backend: SandboxBackend) -> None:
    """Closing the sandbox ends a running command with `SandboxError`, soon."""
    async with opened(backend) as sandbox:
        task = asyncio.create_task(sandbox.exec(("sleep", "600")))
        await asyncio.sleep(0.1)
        await sandbox.close()
        done, _ = await asyncio.wait([task], timeout=SOON.get())
    assert done, "the command still waits"
    assert isinstance(task.exception(), SandboxError), repr(task.exception())


@check()
async def closing_twice(backend: SandboxBackend) -> None:
    """close() may be called twice, even at once; afterwards every call is `SandboxError`."""
    async with opened(backend) as sandbox:
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        for call in (
            lambda: sandbox.exec(("true",)),
            lambda: sandbox.read_file("x"),
            lambda: sandbox.write_file("x", b""),
        ):
            try:
                await call()
            except SandboxError:
                continue
            raise AssertionError("a closed sandbox still answers")
