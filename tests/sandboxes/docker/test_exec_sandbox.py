"""Containers whose every command is a `docker exec`: the whole suite, and images of busybox."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from agentrl_sandboxes import DockerBackend
from agentrl_sandboxes.docker import exec_broom
from agentrl_sandboxes.docker.exec_sandbox import ExecSandbox
from agentrl_sandboxes.image.daemon import daemon

from agentrl.errors import SandboxError, SandboxUnavailable
from agentrl.finding import Status
from agentrl.sandbox import Outcome, SandboxLimits
from agentrl.testing.sandbox_check.suite import SuiteFinding, checks, run_suite

pytestmark = pytest.mark.docker

MIB = 2**20
LIMITS = SandboxLimits(wall_s=10.0, processes=24, disk_bytes=16 * MIB, memory_bytes=64 * MIB)


class ExecOnly(DockerBackend):
    """Uses no Python of the image; the checks themselves need one."""

    def __init__(self) -> None:
        super().__init__(supervisor=False)


@cache
def conformance() -> dict[str, SuiteFinding]:
    async def run() -> list[SuiteFinding]:
        backend = ExecOnly()
        try:
            return await run_suite(backend, at_once=3)
        finally:
            await backend.close()

    return {result.check.name: result for result in asyncio.run(run())}


# A filter of system calls of ours needs Python in the image; Docker's own has this one from 23 on.
HELD = [item.name for item in checks() if item.name != "machine_below_is_out_of_reach"]


@pytest.mark.parametrize("check", HELD)
def test_same_contract_without_a_supervisor(check: str) -> None:
    # Fails, among others, if a sweep takes scripts or other commands along (concurrent_commands,
    # files_and_commands_at_once), or if programs can stop the broom (supervisor_is_protected).
    result = conformance()[check]
    if result.status is Status.UNKNOWN:
        assert check.startswith("reset_"), "only resets are not offered"
    else:
        assert result.status is Status.OK, result.detail


async def make_image(programs: Sequence[str]) -> str:
    """An image of one static busybox under these names; returns its own name."""
    busybox = shutil.which("busybox")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes()[:8192]:
        if os.environ.get("CI"):
            pytest.fail("in CI a static busybox has to be there: apt-get install busybox-static")
        pytest.skip("no static busybox on PATH: apt-get install busybox-static")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(busybox, "bin/busybox")
        for name in programs:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    name = f"agentrl-test-{secrets.token_hex(4)}"
    query = [("fromSrc", "-"), ("repo", name), ("tag", "latest")]
    query.append(("changes", f"LABEL agentrl.test={json.dumps(name)}"))
    async with daemon() as link:
        await link.post("images/create", query, buffer.getvalue(), lambda line: None)
    return name


async def delete_image(name: str) -> None:
    async with daemon() as link:
        await link.delete(f"images/{name}")


FILES = (
    "basename",
    "cat",
    "chmod",
    "dirname",
    "mkdir",
    "mv",
    "readlink",
    "rm",
    "stat",
    "tar",
    "wc",
)


@pytest.fixture
async def image() -> AsyncIterator[str]:
    """An image of busybox only."""
    name = await make_image(("sh", "sleep", "setsid", "ls", "ln", "yes", "tr", "grep", *FILES))
    yield name
    await delete_image(name)


@pytest.fixture
async def sandbox(image: str) -> AsyncIterator[ExecSandbox]:
    """Of that image."""
    backend = DockerBackend(image)
    try:
        made = await backend.create(LIMITS)
        assert isinstance(made, ExecSandbox)
        yield made
    finally:
        await backend.close()


async def test_busybox_runs_commands_and_ends_them(sandbox: ExecSandbox) -> None:
    result = await sandbox.exec(("sh", "-c", 'echo "$1"; echo err >&2; exit 7', "sh", "a b"))
    assert (result.stdout, result.stderr, result.exit_code) == ("a b\n", "err\n", 7)
    assert (await sandbox.exec(("cat",), stdin=b"x" * 2**16)).stdout == "x" * 2**16
    # Fails if only the client of the exec is killed, or only what is below the program.
    beat = "setsid sh -c 'while :; do echo . >>beat; sleep 0.05; done' & sleep 30"
    result = await sandbox.exec(("sh", "-c", beat), timeout_s=3.0)
    assert (result.outcome, result.exit_code) == (Outcome.TIMEOUT, None)
    before = len(await sandbox.read_file("beat"))
    await asyncio.sleep(0.3)
    assert before == len(await sandbox.read_file("beat")) > 0
    assert (await sandbox.exec(("yes",))).outcome is Outcome.OUTPUT_LIMIT


async def test_busybox_tells_memory_from_other_ends(sandbox: ExecSandbox) -> None:
    # Fails if an exit by SIGKILL counts as `oom`, or if the kernel's kill does not.
    result = await sandbox.exec(("sh", "-c", "kill -9 $$"))
    assert (result.outcome, result.exit_code) == (Outcome.NONZERO, -9)
    hog = "x=$(yes | tr -d '\\n'); echo survived"
    result = await sandbox.exec(("sh", "-c", hog))
    assert (result.outcome, result.exit_code) == (Outcome.OOM, None), result
    assert (await sandbox.exec(("sh", "-c", "echo alive"))).stdout == "alive\n"


async def test_busybox_keeps_trees(image: str, sandbox: ExecSandbox, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "odd\nname").write_bytes(bytes(range(256)))
    (tmp_path / "link").symlink_to("closed")
    (tmp_path / "closed").chmod(0o500)
    await sandbox.upload(tmp_path, "in/tree")
    assert await sandbox.read_file("in/tree/link/odd\nname") == bytes(range(256))
    listed = await sandbox.exec(("stat", "-c", "%a", "in/tree/closed"))
    assert listed.stdout == "500\n"
    snapshot = await sandbox.snapshot()
    backend = DockerBackend(image)
    try:
        # Fails with busybox's tar if a directory gets its permissions before its files.
        fork = await backend.create(LIMITS, snapshot)
        found = await fork.download(".", max_bytes=1000)
    finally:
        await backend.close()
    assert found == {"in/tree/closed/odd\nname": bytes(range(256))}


async def test_session_of_a_busybox(sandbox: ExecSandbox) -> None:
    process = await sandbox.start(("sh",))
    await process.write(b"x=5; sleep 30; echo $x over\n")
    await asyncio.sleep(0.5)
    await process.interrupt()
    assert await process.read(timeout_s=8.0) == b"5 over\n"
    await process.write(b"exit 3\n")
    assert await process.read(timeout_s=8.0) == b""
    assert await process.close() == 3


async def test_busybox_tells_a_late_reader_from_none(sandbox: ExecSandbox) -> None:
    # Fails if only descriptor 0 counts as a reader, or if every write that stalls is given up.
    data = b"x" * 4 * MIB
    late = await sandbox.start(("sh", "-c", "exec 3<&0 <&-; sleep 1.5; wc -c <&3"))
    writing = asyncio.create_task(late.write(data + b"\n"))
    none = await sandbox.start(("sh", "-c", "exec <&-; sleep 30"))
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(none.write(data), 8.0)
    with pytest.raises(BrokenPipeError):
        await none.write(b"x")
    await asyncio.wait_for(writing, 8.0)
    await none.close()
    await late.close()


async def test_container_that_dies_is_infrastructure(sandbox: ExecSandbox) -> None:
    # Fails if the daemon's 137 for every program of a dead container counts as the program's end.
    task = asyncio.create_task(sandbox.exec(("sleep", "9")))
    await asyncio.sleep(0.5)
    await sandbox.container.running.container.kill()
    with pytest.raises(SandboxError):
        await task
    with pytest.raises(SandboxError):
        await sandbox.exec(("ls",))


@pytest.mark.parametrize("signal", ["KILL", "STOP"])
async def test_program_that_kills_or_stops_all_for_ever_times_out(
    sandbox: ExecSandbox, signal: str
) -> None:
    # Fails if the broom is of the same user: that is a SandboxError, a free try for the model.
    # Where it is started when needed, a loop of STOP keeps the daemon from starting it.
    start = time.monotonic()
    loop = f"while :; do kill -{signal} -1; done"
    result = await sandbox.exec(("sh", "-c", loop), timeout_s=1.0)
    assert (result.outcome, result.exit_code) == (Outcome.TIMEOUT, None)
    assert time.monotonic() - start < 20.0
    assert (await sandbox.exec(("sh", "-c", "echo alive"))).stdout == "alive\n"


async def test_what_cannot_be_ended_is_the_programs_own_end(
    sandbox: ExecSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing known outlives the broom, so it is told to spare all: fails if that is a SandboxError
    # of the command whose doing it is, or if the sandbox is used further.
    sweep = "i=0; n=1\n"
    assert sweep in exec_broom.SCRIPT
    monkeypatch.setattr(exec_broom, "SCRIPT", exec_broom.SCRIPT.replace(sweep, "i=300; n=1\n"))
    sandbox.container.broom.drop()
    result = await sandbox.exec(("sleep", "9"), timeout_s=1.0)
    assert (result.outcome, result.exit_code) == (Outcome.TIMEOUT, None)
    with pytest.raises(SandboxError, match="could not be ended"):
        await sandbox.exec(("ls",))


async def test_image_without_a_shell_is_refused() -> None:
    image = await make_image(())
    backend = DockerBackend(image)
    try:
        with pytest.raises(SandboxUnavailable, match=r"neither Python 3.9 or newer nor a shell"):
            await backend.create(LIMITS)
    finally:
        await backend.close()
        await delete_image(image)
