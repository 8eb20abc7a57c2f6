"""Checks of what is left: zombies, processes, mounts and files, after close and after a crash."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentrl.sandbox import Isolation, Outcome, SandboxBackend
from agentrl.testing.sandbox_check.check import (
    BEAT,
    LIMITS,
    SOON,
    check,
    expect,
    good,
    opened,
    python,
    until_beating,
)

GONE_S = 30.0
"""How long everything may take to be gone after its host has died."""


@check(Isolation.NAMESPACES)
async def no_zombies(backend: SandboxBackend) -> None:
    """Orphans of many commands are reaped; only a few processes are left inside."""
    orphan = "import os\nfor _ in range(3):\n if not os.fork():\n  os._exit(0)\n"
    count = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    async with opened(backend) as sandbox:
        for _ in range(8):
            expect(await python(sandbox, orphan), Outcome.OK)
        inside = int(await good(sandbox, count))
    assert inside <= 8, f"{inside} processes are left inside, of 24 that were orphaned"


@check()
async def many_at_once(backend: SandboxBackend) -> None:
    """Sixteen sandboxes start, run and close at the same time."""
    sandboxes = await asyncio.gather(*(backend.create(LIMITS) for _ in range(16)))
    try:
        runs = (s.exec(("sh", "-c", f"echo {n}")) for n, s in enumerate(sandboxes))
        results = await asyncio.gather(*runs)
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    assert [r.stdout.strip() for r in results] == [str(n) for n in range(16)]


@check()
async def nothing_is_left_after_close(backend: SandboxBackend) -> None:
    """close() in the midst of commands leaves no process, mount or file behind."""
    token = f"agentrl-check-{secrets.token_hex(8)}"
    before = (_mounts(), _temporary())
    async with opened(backend) as sandbox:
        program = f"# {token}\n{BEAT}os.fork(); os.setsid() if not os.fork() else 0\nbeat('beat')"
        tasks = [asyncio.create_task(python(sandbox, program)) for _ in range(3)]
        await until_beating(sandbox)
    await asyncio.wait(tasks)
    for task in tasks:
        task.exception()
    await _until(lambda: not _running(token), "processes are left")
    # Other sandboxes come and go while checks run side by side, so only what stays counts.
    await _until(lambda: _mounts() <= before[0], "mounts are left")
    names = _temporary() - before[1]
    await _until(lambda: not (names & _temporary()), f"of {sorted(names)} something is left")


@check()
async def nothing_is_left_after_a_crash(backend: SandboxBackend) -> None:
    """When the host process is killed with SIGKILL, its sandboxes are gone within seconds."""
    token = f"agentrl-check-{secrets.token_hex(8)}"
    kind = f"{type(backend).__module__}:{type(backend).__qualname__}"
    mounts = _mounts()
    with tempfile.TemporaryDirectory(prefix="crash-of-agentrl-") as place:
        Path(place).chmod(0o755)
        environment = os.environ | {"TMPDIR": place, "PYTHONPATH": os.pathsep.join(sys.path)}
        host = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", VICTIM, kind, token),
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert host.stdout is not None
        try:
            line = await asyncio.wait_for(host.stdout.readline(), timeout=SOON.get())
            assert line == b"ready\n", f"the victim said {line!r}"
            assert _running(token), "nothing runs that could be left"
        finally:
            host.send_signal(signal.SIGKILL)
            await host.wait()
            host.stdout.feed_eof()
        await _until(lambda: not _running(token), "processes are left")
        await _until(lambda: not list(Path(place).iterdir()), f"files are left in {place}")
        await _until(lambda: _mounts() <= mounts, "mounts are left")


VICTIM = """
import asyncio, sys, time
from agentrl.plugins.imports import resolve
from agentrl.sandbox import SandboxLimits

async def main():
    backend = resolve(sys.argv[1])()
    program = f"# {sys.argv[2]}\\nimport os, time\\nos.fork()\\nif not os.fork(): os.setsid()\\n"
    program += "open('up', 'w').write('x')\\ntime.sleep(600)"
    tasks = []
    for _ in range(3):
        sandbox = await backend.create(SandboxLimits(wall_s=600))
        tasks.append(asyncio.create_task(sandbox.exec(("python3", "-I", "-S", "-c", program))))
        while True:
            try:
                await sandbox.read_file("up")
                break
            except FileNotFoundError:
                await asyncio.sleep(0.02)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
"""A host process that has three busy sandboxes when it prints `ready`."""


def _running(token: str) -> list[int]:
    """Processes of the host, those inside sandboxes included, whose command line has `token`."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in line and VICTIM.encode()[:40] not in line:
                found.append(int(entry.name))
    return found


ENGINE = ("/overlay2/", "/containers/", "/run/docker/", "/run/containerd/", "/kubelet/pods/")
"""Found in the mount points of a container engine, whose other containers come and go."""


def _mounts() -> set[str]:
    """Mount points of our own namespace, but for those that an engine made in it."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    places = {line.split()[4] for line in text.splitlines()}
    return {place for place in places if not any(part in place for part in ENGINE)}


def _temporary() -> set[str]:
    """Names of ours in the temporary directory; not those that hold another process's id."""
    names = {path.name for path in Path(tempfile.gettempdir()).glob("agentrl-*")}
    ours = re.compile(rf"agentrl-({os.getpid()}-|(?!\d+-))")
    return {name for name in names if ours.match(name)}


async def _until(condition: Callable[[], bool], complaint: str) -> None:
    """Wait up to `GONE_S` for a condition."""
    deadline = asyncio.get_running_loop().time() + GONE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{complaint} after {GONE_S:g} s"
        await asyncio.sleep(0.05)
