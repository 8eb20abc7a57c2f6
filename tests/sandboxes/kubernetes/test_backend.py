"""Pods from outside: what the API holds, what fails, what is left. Against the fake cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from agentrl_sandboxes import KubernetesBackend, make_backend
from agentrl_sandboxes.host.leases import OWNER, own_name
from agentrl_sandboxes.kubernetes.backend import InPod
from agentrl_sandboxes.kubernetes.client import Cluster
from agentrl_sandboxes.kubernetes.manifest import PodWish, pod_manifest
from agentrl_sandboxes.kubernetes.pods import start_pod
from agentrl_sandboxes.leftovers import collect

from agentrl.config.sandboxes import sandbox_section
from agentrl.errors import ConfigError, SandboxError, SandboxLost, SandboxUnavailable
from agentrl.runtime.assembly.parts import open_sandboxes
from agentrl.sandbox import Outcome, Sandbox, SandboxLimits
from tests.sandboxes.kubernetes.fake import IMAGE, OnFake, RunningFake

pytestmark = pytest.mark.docker

LIMITS = SandboxLimits(memory_bytes=96 * 2**20, disk_bytes=16 * 2**20, wall_s=300.0)


def name_of(sandbox: Sandbox) -> str:
    started = getattr(sandbox, "started", None)
    assert isinstance(started, InPod)
    return started.running.name


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something holds that is asked of the fake or of the daemon."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def raised(call: Awaitable[object]) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        await call
    return caught.value


def containers(name: str) -> list[str]:
    """Containers of a pod that are there."""
    command = ["docker", "ps", "-aq", "--filter", f"name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
async def pods(fake: RunningFake) -> AsyncIterator[KubernetesBackend]:
    backend = OnFake()
    yield backend
    await backend.close()
    await until(lambda: not fake.pods())


@contextlib.contextmanager
def image_of(recipe: str) -> Iterator[str]:
    """An image that is built for one test."""
    name = f"agentrl-test-{secrets.token_hex(4)}"
    build = ["docker", "build", "-q", "-t", name, "-"]
    subprocess.run(build, input=recipe, text=True, check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "rmi", "-f", name], check=True, capture_output=True)


async def test_a_config_opens_pods_and_refuses_what_they_cannot_have(
    fake: RunningFake, tmp_path: Path
) -> None:
    section = sandbox_section("kubernetes", image=IMAGE, pod={"nodeSelector": {}})
    pool = await open_sandboxes(section, base=tmp_path)
    sandbox = await pool.create(LIMITS)
    assert (await sandbox.exec(("echo", "42"))).stdout == "42\n"
    assert fake.pods()[0]["metadata"]["annotations"][OWNER] == own_name()
    await pool.close()
    with pytest.raises(ConfigError, match=r"sandbox\.pod: .*hostNetwork.*valid: .*nodeSelector"):
        await make_backend("kubernetes", pod={"hostNetwork": True})
    with pytest.raises(ConfigError, match=r"sandbox\.pod is .*only kubernetes has it"):
        await make_backend("docker", pod={"namespace": "x"})
    with pytest.raises(ConfigError, match="put them into the image"):
        await make_backend("kubernetes", read_only=[tmp_path])
    with pytest.raises(ConfigError, match=r"sandbox\.network: .*valid: none, policy"):
        await make_backend("kubernetes", network="open")


async def test_the_kernel_holds_the_walls(pods: KubernetesBackend) -> None:
    # Read from inside: a field that was taken and not followed would not show here.
    sandbox = await pods.create(LIMITS)
    script = (
        "for word in Seccomp NoNewPrivs CapEff CapBnd; do sed -n s/^$word:.//p /proc/self/status; "
        "done; ls /sys/class/net; ls /var/run/secrets 2>/dev/null; env | grep -c KUBERNETES_"
    )
    result = await sandbox.exec(("sh", "-c", script))
    assert result.stdout.split() == ["2", "1", "0" * 16, "0" * 16, "lo", "0"]


async def test_an_image_brings_its_environment_but_no_writable_volume(
    pods: KubernetesBackend,
) -> None:
    # Fails if PATH of the image is dropped (conda images), or if what runtimes put on the node's
    # disk for a VOLUME is left writable, unbounded and unwiped.
    recipe = f"FROM {IMAGE}\nENV PATH=/opt/conda/bin:/usr/bin:/bin FLAVOUR=x=y HOME=/root\n"
    with image_of(recipe) as name:
        sandbox = await pods.create(LIMITS, image=name)
        result = await sandbox.exec(("sh", "-c", "echo $PATH $FLAVOUR $HOME"))
        await sandbox.close()
    assert result.stdout == "/opt/conda/bin:/usr/bin:/bin x=y /sandbox/home\n"
    with image_of(f"FROM {IMAGE}\nRUN mkdir -m 777 /data\nVOLUME /data\n") as name:
        with pytest.raises(SandboxUnavailable, match=r"can write to /data.*without VOLUME"):
            await pods.create(LIMITS, image=name)


async def test_a_wipe_empties_the_file_that_the_node_shows(pods: KubernetesBackend) -> None:
    # Caught: every container can write to /dev/termination-log, a file of the node's disk.
    sandbox = await pods.create(LIMITS)
    write = "echo secret > /dev/termination-log; head -c 99M /dev/zero >> /dev/termination-log"
    await sandbox.exec(("sh", "-c", write))
    held = await sandbox.exec(("stat", "-c", "%s", "/dev/termination-log"))
    assert 7 < int(held.stdout) <= LIMITS.disk_bytes
    await sandbox.reset()
    assert (await sandbox.exec(("cat", "/dev/termination-log"))).stdout == ""


async def test_a_network_that_is_open_is_refused(
    fake: RunningFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RunningFake(tmp_path)
    backend = OnFake()
    closed = KubernetesBackend(IMAGE, network="none")
    try:
        monkeypatch.setenv("KUBECONFIG", str(other.kubeconfig))
        # Nobody may make the policy, as in many namespaces.
        rule = {"what": "create networkpolicies", "code": 403, "message": "no", "times": 99}
        other.refuse(rule)
        error = await raised(backend.create(LIMITS))
        assert isinstance(error, SandboxUnavailable)
        # A machine with internet reaches others as well.
        assert re.search(rf" reach [^a-z]*127\.0\.0\.1:{other.port}[,:]", str(error))
        assert "sandbox.network: none" in str(error)
        await backend.close()
        await until(lambda: not other.pods())
        # The same cluster, and nothing to trust.
        sandbox = await closed.create(LIMITS)
        tried = "import socket\nfor f in (2, 10): socket.socket(f)"
        result = await sandbox.exec(("python3", "-c", tried))
        assert "Address family not supported" in result.stderr
    finally:
        await backend.close()
        await closed.close()
        other.close()


@pytest.mark.parametrize(
    ("rule", "kind", "said"),
    [
        ({"code": 403, "message": 'pods is forbidden: User "u" cannot create resource "pods"'},
         SandboxUnavailable, r"Ask for a role .* may create, get, list, watch"),
        ({"code": 403, "message": 'pods "x" is forbidden: exceeded quota: q, used: pods=9'},
         SandboxLost, "exceeded quota"),
        ({"code": 401, "message": "Unauthorized", "reason": "Unauthorized", "times": 2},
         SandboxUnavailable, "does not accept the credentials"),
        ({"code": 409, "message": "already exists", "reason": "AlreadyExists"},
         SandboxLost, "already exists"),
        ({"code": 500, "message": "etcdserver: leader changed"}, SandboxLost, "leader changed"),
        ({"code": 429, "message": "too many requests", "times": 9, "wait": 0.05},
         SandboxLost, "too many requests"),
        ({"what": "watch pods", "code": 403, "message": 'User "u" cannot watch resource "pods"'},
         SandboxUnavailable, "cannot watch"),
        ({"what": "get pods/attach", "code": 403, "message": "Forbidden", "times": 99},
         SandboxUnavailable, "cannot get and create pods/attach"),
    ],
)  # fmt: skip
async def test_a_refusal_says_whether_to_try_again(
    pods: KubernetesBackend,
    fake: RunningFake,
    rule: dict[str, object],
    kind: type[SandboxError],
    said: str,
) -> None:
    await (await pods.create(LIMITS)).close()
    fake.refuse({"what": "create pods", **rule})
    with pytest.raises(SandboxError, match=said) as caught:
        await pods.create(LIMITS)
    fake.refuse()
    assert type(caught.value) is kind
    # It has not spoiled the backend, and nothing is left.
    await (await pods.create(LIMITS)).close()


async def test_a_busy_api_and_an_old_token_are_overcome(
    pods: KubernetesBackend, fake: RunningFake
) -> None:
    busy = {"what": "create pods", "code": 429, "message": "busy", "times": 2, "wait": 1}
    old = {"what": "delete pods", "code": 401, "message": "Unauthorized"}
    fake.refuse(busy, old)
    sandbox = await pods.create(LIMITS)
    assert (await sandbox.exec(("true",))).outcome is Outcome.OK


async def test_pods_that_cannot_start_say_what_to_mend(
    pods: KubernetesBackend, fake: RunningFake
) -> None:
    error = await raised(pods.create(LIMITS, image="registry.test/no/such:1"))
    assert isinstance(error, SandboxUnavailable)
    assert "ImagePullBackOff" in str(error)
    assert "imagePullSecrets" in str(error)
    with image_of("FROM scratch\nLABEL empty=1\n") as name:
        error = await raised(pods.create(LIMITS, image=name))
    assert isinstance(error, SandboxUnavailable)
    assert "no python3 in it" in str(error)
    other = KubernetesBackend(IMAGE, runtime="gvisor")
    error = await raised(other.create(LIMITS))
    assert isinstance(error, SandboxUnavailable)
    assert 'RuntimeClass "gvisor" not found' in str(error)
    await other.close()
    other = KubernetesBackend(IMAGE, pod={"namespace": "nowhere"})
    error = await raised(other.create(LIMITS))
    assert isinstance(error, SandboxUnavailable)
    assert "kubectl create namespace nowhere" in str(error)
    await other.close()


@pytest.mark.parametrize("fits", [False, True])
async def test_a_pod_without_a_node_is_a_mistake_until_one_has_fitted(
    fake: RunningFake, fits: bool
) -> None:
    cluster = Cluster()
    await cluster.open()
    placing = {"nodeSelector": {"gpu": "yes"}}
    wish = PodWish(
        name=f"agentrl-{secrets.token_hex(8)}",
        image=IMAGE,
        command=("sleep", "9"),
        uid=12345,
        limits=LIMITS,
        start_s=1.0,
        annotations={},
        placing=placing,
    )
    error = await raised(start_pod(cluster, pod_manifest(wish), fits=fits, place_s=0.5))
    assert isinstance(error, SandboxUnavailable) is not fits
    assert "didn't match Pod's node affinity/selector" in str(error)
    await until(lambda: not fake.pods())
    await cluster.aclose()


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("evict", "ended by the cluster: Evicted: The node was low on resource: memory."),
        ("oom", "its container ran out of memory (OOMKilled)"),
        ("lost", "NodeLost: Node is not responding"),
        ("cut", "connection was lost"),
    ],
)
async def test_the_end_of_a_pod_is_infrastructure_and_says_why(
    pods: KubernetesBackend, fake: RunningFake, event: str, said: str
) -> None:
    # Fails if the loss of a pod is shown to a model as output, or waits for the time limit.
    sandbox, other = await pods.create(LIMITS), await pods.create(LIMITS)
    name = name_of(sandbox)
    running = asyncio.create_task(sandbox.exec(("sleep", "600")))
    await until(lambda: containers(name))
    await asyncio.to_thread(fake.let, event, name)
    error = await asyncio.wait_for(raised(running), 120)
    assert said in str(error)
    assert not isinstance(error, SandboxUnavailable)
    await until(lambda: not containers(name))
    await sandbox.close()
    # Its neighbour has noticed nothing.
    assert (await other.exec(("echo", "alive"))).stdout == "alive\n"


async def test_an_api_that_dies_and_comes_back_costs_the_open_sandboxes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunningFake(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(first.kubeconfig))
    backend = OnFake()
    sandbox = await backend.create(LIMITS)
    name = name_of(sandbox)
    running = asyncio.create_task(sandbox.exec(("sleep", "600")))
    await until(lambda: containers(name))
    first.kill()
    error = await asyncio.wait_for(raised(running), 120)
    assert not isinstance(error, SandboxUnavailable)
    # Its attach has ended, and the supervisor with it.
    await until(lambda: not containers(name))
    error = await raised(backend.create(LIMITS))
    assert "went away" in str(error)
    assert not isinstance(error, SandboxUnavailable)
    second = RunningFake(tmp_path, first.port)
    try:
        fresh = await backend.create(LIMITS)
        assert (await fresh.exec(("echo", "back"))).stdout == "back\n"
        await backend.close()
    finally:
        second.close()


async def test_a_cancelled_start_leaves_no_pod(pods: KubernetesBackend, fake: RunningFake) -> None:
    await (await pods.create(LIMITS)).close()
    for pause in (0.0, 0.01, 0.05, 0.1, 0.2, 0.3):
        opening = asyncio.create_task(pods.create(LIMITS))
        await asyncio.sleep(pause)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
    await until(lambda: not fake.pods())


KILLED = """
import asyncio, os, sys
from agentrl.sandbox import SandboxLimits
from agentrl_sandboxes.host.leases import own_name
from tests.sandboxes.kubernetes.fake import OnFake

async def main():
    backend = OnFake()
    await (await backend.create(SandboxLimits())).close()
    for _ in range(4):
        asyncio.create_task(backend.create(SandboxLimits()))
    print(own_name(), flush=True)
    await asyncio.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_killed_host_leaves_nothing_running_and_the_next_start_sweeps(
    fake: RunningFake,
) -> None:
    # Fails if a pod whose supervisor nobody speaks to any more runs on, or if ended pods pile up.
    paths = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(Path.cwd())])}
    owners: list[str] = []
    for pause in ("0.05", "1.5"):
        host = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", KILLED, pause],
            capture_output=True,
            text=True,
            env=paths,
            timeout=600,
        )
        assert host.returncode == -signal.SIGKILL, host.stderr
        owners.append(host.stdout.strip())

    def left() -> list[str]:
        found = [pod["metadata"]["annotations"][OWNER] for pod in fake.pods()]
        return [owner for owner in found if owner in owners]

    assert left(), "nothing was left that could be swept"
    found = await collect(dry_run=True)
    named = [item.name for item in found if item.kind == "pod"]
    assert len(named) == len(left())
    assert all(name.startswith("sandboxes/agentrl-") for name in named)
    backend = OnFake()
    mine = await backend.create(LIMITS)
    await until(lambda: not left())
    assert (await mine.exec(("echo", "alive"))).stdout == "alive\n"
    await backend.close()
    await until(lambda: not fake.pods())
    assert not [item for item in await collect() if item.kind == "pod"]
