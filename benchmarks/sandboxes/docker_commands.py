"""What a command costs in a container: our supervisor, `docker exec`, and SWE-ReX.

    python benchmarks/sandboxes/docker_commands.py                   # all parts, minutes
    python benchmarks/sandboxes/docker_commands.py latency crash     # some of them
    python benchmarks/sandboxes/docker_commands.py --swe-rex VENV   # and SWE-ReX of VENV

    latency  one container, `sh -c 'echo x'` again and again, in turns: milliseconds a command
    rate     eight containers at once: commands a second
    episode  start, 20 commands, end: seconds
    many     64 sandboxes at once with 20 commands each: wall time, failures, containers left
    crash    a host with 32 busy sandboxes is killed with SIGKILL, ten times: what is left after 2 s

`docker exec` is called as mini-swe-agent calls it: `docker run -d`, then for each command a child
process `docker exec -w DIR CONTAINER bash -lc COMMAND`, then `docker rm -f`. SWE-ReX is its
`DockerDeployment` with `execute`, the quicker of its two calls. Each figure is the median over the
repeats, which alternate between the contestants, with the smallest and the largest in brackets.

Targets: 2 ms a command; 20 times the commands a second of `docker exec`; no failure and nothing
left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from harness import machine, options, spread

IMAGE = "agentrl-sandbox"
COMMAND = "echo x"
REX = "swe-rex-child"
BENCH = "agentrl.bench"


def report(what: str, values: list[float], unit: str) -> None:
    print(f"{what:42} {spread(values, 3)} {unit}", flush=True)


# -- docker exec, as mini-swe-agent does it -------------------------------------------------------


async def docker(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode().strip()


@contextlib.asynccontextmanager
async def plain_container() -> AsyncIterator[str]:
    options = ("--rm", "--network", "none", "--label", f"{BENCH}=exec", "-w", "/")
    container = await docker("run", "-d", *options, IMAGE, "sleep", "600")
    try:
        yield container
    finally:
        await docker("rm", "-f", container)


async def plain_command(container: str) -> None:
    assert await docker("exec", "-w", "/", container, "bash", "-lc", COMMAND) == "x"


# -- ours -----------------------------------------------------------------------------------------


def our_backend() -> Any:
    from agentrl_sandboxes import DockerBackend

    return DockerBackend(IMAGE)


async def our_command(sandbox: Any) -> None:
    result = await sandbox.exec(("sh", "-c", COMMAND))
    assert result.stdout == "x\n", result


def our_limits() -> Any:
    from agentrl.sandbox import SandboxLimits

    return SandboxLimits(wall_s=60.0)


# -- SWE-ReX, in a process of its own environment -------------------------------------------------


class Rex:
    """A child that holds containers of SWE-ReX and runs commands when told to."""

    def __init__(self, venv: str) -> None:
        self.child = subprocess.Popen(
            [f"{venv}/bin/python", __file__, REX],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, what: str) -> float:
        """`latency`, `rate` or `episode`."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        print(what, file=self.child.stdin, flush=True)
        return json.loads(self.child.stdout.readline())

    def close(self) -> None:
        self.child.communicate()


async def rex_child() -> None:
    from swerex.deployment.docker import DockerDeployment
    from swerex.runtime.abstract import Command

    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    starter = site / "agentrl-bench-swerex-remote"
    starter.write_text("#!/usr/bin/python3\nfrom swerex.server import main\nmain()\n")
    starter.chmod(0o755)
    mounts = ("-v", f"{site}:/rex:ro", "-v", f"{starter}:/usr/local/bin/swerex-remote:ro")
    options = [*mounts, "-e", "PYTHONPATH=/rex", "--label", f"{BENCH}=rex"]

    async def start() -> Any:
        deployment = DockerDeployment(image=IMAGE, pull="never", docker_args=options)
        await deployment.start()
        return deployment

    async def command(deployment: Any) -> None:
        answer = await deployment.runtime.execute(Command(command=["sh", "-c", COMMAND]))
        assert answer.stdout == "x\n", answer

    keep: list[Any] = []
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        if line.strip() == "episode":
            begin = time.perf_counter()
            one = await start()
            for _ in range(20):
                await command(one)
            await one.stop()
            value = time.perf_counter() - begin
        else:
            count = 1 if line.strip() == "latency" else 8
            while len(keep) < count:
                keep.append(await start())
            measure = latency if count == 1 else rate
            value = await measure([lambda one=one: command(one) for one in keep[:count]])
        print(json.dumps(value), file=out, flush=True)
    for one in keep:
        await one.stop()
    starter.unlink()


# -- what is measured -----------------------------------------------------------------------------

Call = Callable[[], Awaitable[None]]


async def latency(calls: list[Call], count: int = 40) -> float:
    """Median milliseconds of a call, one after the other."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        await calls[0]()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


async def rate(calls: list[Call], count: int = 40) -> float:
    """Calls a second, each of the calls in a loop of its own."""

    async def loop(call: Call) -> None:
        for _ in range(count):
            await call()

    begin = time.perf_counter()
    await asyncio.gather(*(loop(call) for call in calls))
    return len(calls) * count / (time.perf_counter() - begin)


async def commands(repeats: int, containers: int, measure: Any, rex: Rex | None) -> dict[str, Any]:
    """Latency or rate of the contestants, in turns."""
    backend, found = our_backend(), {"agentrl": [], "docker exec": [], "SWE-ReX": []}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(backend.close)
        ours = [await backend.create(our_limits()) for _ in range(containers)]
        plain = [await stack.enter_async_context(plain_container()) for _ in range(containers)]
        for _ in range(repeats):
            calls = [lambda one=one: our_command(one) for one in ours]
            found["agentrl"].append(await measure(calls, 200))
            calls = [lambda one=one: plain_command(one) for one in plain]
            found["docker exec"].append(await measure(calls, 10))
            if rex is not None:
                found["SWE-ReX"].append(rex.ask(measure.__name__))
    return {name: values for name, values in found.items() if values}


async def episodes(repeats: int, rex: Rex | None) -> dict[str, list[float]]:
    """Seconds from nothing over 20 commands to nothing."""
    backend, found = our_backend(), {"agentrl": [], "docker exec": [], "SWE-ReX": []}
    await backend.probe()
    for _ in range(repeats):
        begin = time.perf_counter()
        sandbox = await backend.create(our_limits())
        for _ in range(20):
            await our_command(sandbox)
        await sandbox.close()
        found["agentrl"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        async with plain_container() as container:
            for _ in range(20):
                await plain_command(container)
        found["docker exec"].append(time.perf_counter() - begin)
        if rex is not None:
            found["SWE-ReX"].append(rex.ask("episode"))
    await backend.close()
    return {name: values for name, values in found.items() if values}


async def many(sandboxes: int) -> None:
    """Many at once, as many rollouts do."""
    backend, failures = our_backend(), 0

    async def one() -> None:
        nonlocal failures
        try:
            sandbox = await backend.create(our_limits())
            for _ in range(20):
                await our_command(sandbox)
            await sandbox.close()
        except Exception as error:
            failures += 1
            print(f"  {error!r}")

    await backend.probe()
    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(sandboxes)))
    wall = time.perf_counter() - begin
    await backend.close()
    print(
        f"{sandboxes} sandboxes x 20 commands: {wall:.1f} s, {failures} failures, "
        f"{len(left_of(os.getpid()))} containers left"
    )


VICTIM = """
import asyncio, sys
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes import DockerBackend

async def main():
    backend = DockerBackend(sys.argv[2])
    gate = asyncio.Semaphore(4)
    async def one():
        async with gate:
            return await backend.create(SandboxLimits(wall_s=60.0))
    sandboxes = await asyncio.gather(*(one() for _ in range(int(sys.argv[1]))))
    script = "(setsid sleep 98765 &); sleep 98765"
    busy = [asyncio.create_task(s.exec(("sh", "-c", script))) for s in sandboxes]
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def left_of(pid: int) -> list[str]:
    """Containers of a process, by the label of its lease."""
    command = ["docker", "ps", "-a", "--format", '{{.Label "agentrl.owner"}}']
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [owner for owner in found if owner.split(":")[3:4] == [str(pid)]]


def sleeping() -> int:
    found = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            found += (entry / "cmdline").read_bytes().startswith(b"sleep\x0098765\0")
    return found


def crash(sandboxes: int, repeats: int) -> None:
    """What is left two seconds after the host of busy sandboxes was killed."""
    mounts = Path("/proc/self/mountinfo")
    for number in range(repeats):
        before = set(mounts.read_text().splitlines())
        host = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(sandboxes), IMAGE], stdout=subprocess.PIPE, text=True
        )
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        live, busy = len(left_of(host.pid)), sleeping()
        host.send_signal(signal.SIGKILL)
        host.communicate()
        time.sleep(2.0)
        after = set(mounts.read_text().splitlines()) - before
        print(
            f"crash {number + 1}: {live} containers and {busy} processes; after 2 s "
            f"{len(left_of(host.pid))} containers, {sleeping()} processes, {len(after)} mounts"
        )


async def main() -> None:
    args = options(__doc__, parts_=[str], repeats=7, sandboxes=64, crashes=10, swe_rex="")
    chosen = args.parts or ("latency", "rate", "episode", "many", "crash")
    print(machine())
    rex = Rex(args.swe_rex) if args.swe_rex else None
    for part, containers, measure, unit in (("latency", 1, latency, "ms"), ("rate", 8, rate, "/s")):
        if part in chosen:
            found = await commands(args.repeats, containers, measure, rex)
            for name, values in found.items():
                report(f"{part}, {containers} container(s), {name}", values, unit)
    if "episode" in chosen:
        for name, values in (await episodes(args.repeats, rex)).items():
            report(f"episode of 20 commands, {name}", values, "s")
    if rex is not None:
        rex.close()
    if "many" in chosen:
        await many(args.sandboxes)
    if "crash" in chosen:
        crash(args.sandboxes // 2, args.crashes)


if __name__ == "__main__":
    asyncio.run(rex_child() if sys.argv[1:] == [REX] else main())
