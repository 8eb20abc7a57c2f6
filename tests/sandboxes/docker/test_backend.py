"""Docker from outside: what the daemon holds, what fails, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agentrl_sandboxes import DockerBackend, make_backend
from agentrl_sandboxes.docker.client import Client
from agentrl_sandboxes.docker.hardening import OVERHEAD
from agentrl_sandboxes.host.leases import LEASE, OWNER, own_name
from agentrl_sandboxes.leftovers import collect

from agentrl.errors import ConfigError, SandboxError, SandboxUnavailable
from agentrl.sandbox import Outcome, SandboxLimits

pytestmark = pytest.mark.docker

LIMITS = SandboxLimits(memory_bytes=96 * 2**20, disk_bytes=16 * 2**20)


def containers(owner: str) -> list[str]:
    """Ids of the containers of a process."""
    command = ["docker", "ps", "-aq", "--no-trunc", "--filter", f"label={OWNER}={owner}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


async def gone(owner: str) -> bool:
    """Whether a process has no container any more, within a while."""
    for _ in range(2400):
        if not await asyncio.to_thread(containers, owner):
            return True
        await asyncio.sleep(0.05)
    return False


@pytest.fixture
async def docker() -> AsyncIterator[DockerBackend]:
    backend = DockerBackend()
    yield backend
    await backend.close()
    assert await gone(own_name())


async def test_the_kernel_holds_the_walls(docker: DockerBackend) -> None:
    # Read from inside: a request that the daemon took and did not follow would not show here.
    sandbox = await docker.create(LIMITS)
    script = (
        "for word in Seccomp NoNewPrivs CapEff CapBnd; do sed -n s/^$word:.//p /proc/self/status; "
        "done; cat /sys/fs/cgroup/memory/memory.limit_in_bytes || cat /sys/fs/cgroup/memory.max; "
        "ls /sys/class/net; grep -c ' /sandbox \\| /tmp \\| /dev/shm ' /proc/mounts"
    )
    result = await sandbox.exec(("sh", "-c", script))
    memory = str((96 + 3 * 16) * 2**20 + OVERHEAD)
    assert result.stdout.split() == ["2", "1", "0" * 16, "0" * 16, memory, "lo", "3"]


SOCKETS = """
import _socket, os, time
open('/proc/self/oom_score_adj', 'w').write('500')
for _ in range(27):
    if not os.fork(): break
kept, data = [], b'x' * 65536
try:
    while True:
        one, other = _socket.socketpair(); kept += [one, other]
        one.setblocking(False)
        try:
            while True: one.send(data)
        except BlockingIOError: time.sleep(0.02)
except OSError: pass
time.sleep(8)
"""


async def test_memory_of_no_process_ends_the_program_and_not_the_container(
    docker: DockerBackend,
) -> None:
    # Fails if only the memory of processes is looked at: the kernel then ends the largest process
    # there is, and that is the supervisor.
    sandbox = await docker.create(LIMITS)
    result = await sandbox.exec(("python3", "-I", "-S", "-c", SOCKETS))
    assert result.outcome is Outcome.OOM
    assert (await sandbox.exec(("echo", "alive"))).stdout == "alive\n"


async def test_a_volume_of_the_image_is_no_way_to_the_disk_of_the_host(
    docker: DockerBackend,
) -> None:
    # Fails if volumes are left to the daemon: they are writable, unbounded, and outlive a wipe.
    name = f"agentrl-test-{secrets.token_hex(8)}"
    change = 'VOLUME ["/usr/share", "/data"]'

    def run(*words: str) -> None:
        subprocess.run(["docker", *words], check=True, capture_output=True)

    run("create", "--name", name, "agentrl-sandbox", "true")
    try:
        run("commit", "--change", change, name, name)
        sandbox = await docker.create(LIMITS, image=name)
        shown = await sandbox.exec(("grep", "-E", " (/data|/usr/share) ", "/proc/mounts"))
        await sandbox.close()
    finally:
        run("rm", name)
        run("rmi", name)
    kinds = [line.split()[2:4] for line in shown.stdout.splitlines()]
    assert [kind for kind, _ in kinds] == ["tmpfs", "tmpfs"]
    assert all(options.startswith("ro,") for _, options in kinds)


async def test_full_disks_and_a_hog_end_the_program_and_not_the_container(
    docker: DockerBackend,
) -> None:
    # Fails if the memory of the container does not include what its three tmpfs can hold.
    sandbox = await docker.create(LIMITS)
    fill = "for d in . /tmp /dev/shm; do head -c 15M /dev/zero > $d/big || exit 1; done"
    await sandbox.exec(("sh", "-c", fill))
    hog = "kept = []\nfor _ in range(200): kept.append(b'x' * (4 << 20))"
    result = await sandbox.exec(("python3", "-c", hog))
    assert result.outcome is Outcome.OOM
    assert (await sandbox.exec(("echo", "alive"))).stdout == "alive\n"


async def test_a_container_that_is_killed_is_no_result(docker: DockerBackend) -> None:
    sandbox = await docker.create(LIMITS)
    task = asyncio.create_task(sandbox.exec(("sleep", "9")))
    await asyncio.sleep(0.1)
    (found,) = containers(own_name())
    subprocess.run(["docker", "kill", found], check=True, capture_output=True)
    with pytest.raises(SandboxError):
        await task
    with pytest.raises(SandboxError):
        await sandbox.read_file("x")
    await sandbox.close()


async def test_a_container_ends_itself_at_its_deadline(docker: DockerBackend) -> None:
    # Its owner still holds its stdin, so nothing but the supervisor can end it.
    await docker.create(SandboxLimits(lifetime_s=3.0))
    assert containers(own_name())
    assert await gone(own_name())


async def test_a_create_that_is_cut_off_leaves_nothing(docker: DockerBackend) -> None:
    # Fails if a request that the daemon works on is forgotten with the task that sent it.
    await docker.probe()
    for pause in (0.0, 0.01, 0.03, 0.06, 0.09):
        task = asyncio.create_task(docker.create(LIMITS))
        await asyncio.sleep(pause)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).close()
    await docker.close()
    assert await gone(own_name())


async def test_an_event_loop_that_ends_leaves_nothing(docker: DockerBackend) -> None:
    # As after Ctrl-C: every task is cancelled, also the one that sees the request through. Fails if
    # a container is taken as gone because the daemon does not know it yet.
    await docker.probe()
    for pause in (0.002, 0.01, 0.03, 0.06):
        before = asyncio.all_tasks()
        task = asyncio.create_task(docker.create(LIMITS))
        await asyncio.sleep(pause)
        cancelled = asyncio.all_tasks() - before
        for one in cancelled:
            one.cancel()
        await asyncio.wait(cancelled)
        if not task.cancelled():
            await (await task).close()
    assert await gone(own_name())


HOST = """
import asyncio
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.docker import DockerBackend
from agentrl_sandboxes.host.leases import own_name

async def main():
    backend = DockerBackend()
    sandboxes = [await backend.create(SandboxLimits()) for _ in range(3)]
    busy = asyncio.create_task(sandboxes[0].exec(("sh", "-c", "setsid sleep 60")))
    await asyncio.sleep(0.1)
    print(own_name(), flush=True)
    await busy

asyncio.run(main())
"""


async def test_containers_go_with_their_host() -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert host.stdout is not None
    with host:
        owner = host.stdout.readline().strip()
        assert len(containers(owner)) == 3
        host.kill()
    assert await gone(owner)


async def test_gc_removes_what_a_dead_owner_left_and_nothing_else(
    docker: DockerBackend, tmp_path: Path
) -> None:
    await docker.create(LIMITS)
    dead = own_name().rpartition(":")[0] + ":1"
    name = f"agentrl-test-{secrets.token_hex(4)}"
    labels = ["--label", f"{OWNER}={dead}", "--label", f"{LEASE}=99999999999"]
    create = ["docker", "create", "--name", name, *labels, "agentrl-sandbox", "true"]
    subprocess.run(create, check=True, capture_output=True)
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = tmp_path / f"agentrl-{ended.pid}-{'0' * 16}"
    (folder / "work").mkdir(parents=True)
    mine = tmp_path / f"agentrl-{os.getpid()}-{'0' * 16}"
    mine.mkdir()
    try:
        (left,) = containers(dead)
        wanted = {str(folder), left[:12]}
        # Others may have died on this machine, too.
        assert wanted <= {item.name for item in await collect(dry_run=True, folder=tmp_path)}
        assert containers(dead)
        assert folder.exists()
        assert wanted <= {item.name for item in await collect(folder=tmp_path) if item.removed}
        assert not containers(dead)
        assert not folder.exists()
        assert mine.exists()
        assert len(containers(own_name())) == 1
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)


async def test_directories_of_the_host_are_shown_and_not_given(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("42")
    tmp_path.chmod(0o777)
    backend = await make_backend("docker", read_only=[str(tmp_path)])
    sandbox = await backend.create(LIMITS)
    script = f"cat {tmp_path}/data; echo x > {tmp_path}/new || echo refused"
    result = await sandbox.exec(("sh", "-c", script))
    await backend.close()
    assert result.stdout == "42refused\n"
    assert not (tmp_path / "new").exists()


async def test_wrong_requests_say_what_to_do(docker: DockerBackend) -> None:
    # Caught: advice that makes a plain image under the name of a data set's.
    with pytest.raises(SandboxUnavailable, match=r"docker pull no-such-image`.*, or build it"):
        await docker.create(LIMITS, image="no-such-image")
    with pytest.raises(SandboxUnavailable, match="image build --name agentrl-sandbox:no-such"):
        await docker.create(LIMITS, image="agentrl-sandbox:no-such")
    with pytest.raises(ConfigError, match="not the name of an image"):
        await docker.create(LIMITS, image="Not//An:Image:")
    # The kernel has fewer processors than this, and the daemon says so.
    with pytest.raises(SandboxUnavailable, match="CPUs"):
        await docker.create(SandboxLimits(cpus=10_000.0))
    with pytest.raises(ConfigError, match=r"got 'runsk'.*valid: .*runc"):
        await DockerBackend(runtime="runsk").create(LIMITS)
    with pytest.raises(SandboxUnavailable, match="got 'runsk'"):
        await make_backend("docker", runtime="runsk")


async def test_a_daemon_that_goes_away_is_infrastructure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A relay stands for the daemon, so that it can be ended without taking the real one along.
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    real = Client()
    await real.open()
    path = str(tmp_path / "relay.sock")
    ends: list[asyncio.StreamWriter] = []

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_unix_connection(real.address.socket_path)
        ends.extend((writer, inner[1]))
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    server = await asyncio.start_unix_server(relay, path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    backend = DockerBackend()
    sandbox = await backend.create(LIMITS)
    running = asyncio.create_task(sandbox.exec(("sleep", "9")))
    await asyncio.sleep(0.1)
    server.close()
    for end in ends:
        end.close()
    Path(path).unlink()
    with pytest.raises(SandboxError, match="ended unexpectedly"):
        await running
    with pytest.raises(SandboxError, match="went away") as caught:
        await backend.create(LIMITS)
    assert not isinstance(caught.value, SandboxUnavailable)
    await backend.close()
    monkeypatch.delenv("DOCKER_HOST")
    assert await gone(own_name())
    await real.aclose()


async def test_an_image_brings_its_environment(docker: DockerBackend) -> None:
    # Fails if PATH of the image is dropped (conda images), or HOME is not ours.
    name = f"agentrl-test-{secrets.token_hex(4)}"
    recipe = "FROM agentrl-sandbox\nENV PATH=/opt/conda/bin:/usr/bin:/bin FLAVOUR=x=y HOME=/root\n"
    build = ["docker", "build", "-q", "-t", name, "-"]
    subprocess.run(build, input=recipe, text=True, check=True, capture_output=True)
    try:
        sandbox = await docker.create(LIMITS, image=name)
        result = await sandbox.exec(("sh", "-c", "echo $PATH $FLAVOUR $HOME"))
        await sandbox.close()
    finally:
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)
    assert result.stdout == "/opt/conda/bin:/usr/bin:/bin x=y /sandbox/home\n"


KILLED = """
import asyncio, os, signal, sys
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.docker import DockerBackend
from agentrl_sandboxes.host.leases import own_name

async def main():
    backend = DockerBackend()
    await (await backend.create(SandboxLimits())).close()
    print(own_name(), flush=True)
    for _ in range(12):
        asyncio.create_task(backend.create(SandboxLimits()))
    await asyncio.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_next_start_sweeps_what_a_killed_process_has_left() -> None:
    # Fails if only `sandbox gc` looks for them: a container that was made and never started has no
    # stdin whose end would end it.
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    owners: list[str] = []
    for pause in ("0.01", "0.1", "0.4"):
        host = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", KILLED, pause],
            capture_output=True,
            text=True,
            env=paths,
            timeout=600,
        )
        owners.append(host.stdout.strip())
    # One that is left for certain, also where the daemon was quick.
    name = f"agentrl-test-{secrets.token_hex(4)}"
    labels = ["--label", f"{OWNER}={owners[0]}", "--label", f"{LEASE}=99999999999"]
    create = ["docker", "create", "--name", name, *labels, "agentrl-sandbox", "true"]
    await asyncio.to_thread(subprocess.run, create, check=True, capture_output=True)
    # The daemon goes on with what it was asked for.
    await asyncio.sleep(2.0)
    backend = DockerBackend()
    try:
        mine = await backend.create(LIMITS)
        for _ in range(1200):
            if not any(map(containers, owners)):
                break
            await asyncio.sleep(0.1)
        assert not any(map(containers, owners))
        assert (await mine.exec(("echo", "alive"))).stdout == "alive\n"
    finally:
        await backend.close()
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
