"""Parts of the Kubernetes backend that need no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import marshal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agentrl_sandboxes import KubernetesBackend, ProcessBackend
from agentrl_sandboxes.guest import wire
from agentrl_sandboxes.host.answers import decode_surroundings
from agentrl_sandboxes.host.channel import PORTABLE_BOOT, Channel, EndedOutside, portable_frame
from agentrl_sandboxes.host.leases import labels
from agentrl_sandboxes.kubernetes import verdicts
from agentrl_sandboxes.kubernetes.attach import WINDOW, PodStreams, attach
from agentrl_sandboxes.kubernetes.client import Cluster
from agentrl_sandboxes.kubernetes.failures import ApiRefusal, as_sandbox_error, unreachable
from agentrl_sandboxes.kubernetes.manifest import PodWish, pod_manifest, policy_manifest
from agentrl_sandboxes.kubernetes.sweep import is_left
from aiohttp import web

from agentrl.errors import SandboxError, SandboxLost, SandboxUnavailable
from agentrl.sandbox import SandboxLimits
from tests.sandboxes.kubernetes.fake_cluster.rules import complaints
from tests.sandboxes.kubernetes.fake_cluster.server import kubeconfig

Script = Callable[[web.WebSocketResponse], Awaitable[None]]


def wish(**more: Any) -> PodWish:
    limits = SandboxLimits(memory_bytes=2**28, disk_bytes=2**24, cpus=0.5, lifetime_s=60.5)
    usual: dict[str, Any] = {
        "name": "agentrl-1",
        "image": "i",
        "command": ("python3", "-c", "x"),
        "uid": 77,
        "limits": limits,
        "start_s": 10.0,
        "annotations": labels(limits),
    }
    return PodWish(**{**usual, **more})


def test_the_objects_are_those_of_the_published_api() -> None:
    # Fails if a field is misspelled, which an API server of 1.25 and older drops in silence.
    placing = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "s"}],
    }
    pod = pod_manifest(wish(placing=placing, runtime="gvisor"))
    assert complaints("V1Pod", pod) == []
    assert complaints("V1NetworkPolicy", policy_manifest()) == []
    assert pod["spec"]["runtimeClassName"] == "gvisor"
    for path, value, said in (
        (
            ("spec", "containers", 0, "stdinonce"),
            True,
            'unknown field "spec.containers[0].stdinonce',
        ),
        (("spec", "hostNetwork"), True, "hostNetwork"),
        (("spec", "activeDeadlineSeconds"), 0, "activeDeadlineSeconds"),
        (("metadata", "labels"), {"x": "a:b"}, "labels"),
        (("spec", "containers", 0, "securityContext", "capabilities"), {}, "capabilities"),
    ):
        wrong = copy.deepcopy(pod)
        place = wrong
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        assert any(said in text for text in complaints("V1Pod", wrong)), path


def test_the_pod_names_every_wall() -> None:
    pod = pod_manifest(wish())
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["activeDeadlineSeconds"] == 131
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    # Caught on a real node: the pod's first process has the user of the pod, and one process more
    # of that user is one less for programs.
    assert set(spec["securityContext"]) == {"runAsNonRoot", "seccompProfile"}
    assert (container["stdin"], container["stdinOnce"], container["tty"]) == (True, True, False)
    walls = container["securityContext"]
    assert walls["capabilities"] == {"drop": ["ALL"]}
    assert walls["runAsUser"] == walls["runAsGroup"] == 77
    assert (walls["readOnlyRootFilesystem"], walls["allowPrivilegeEscalation"]) == (True, False)
    limits = container["resources"]["limits"]
    assert int(limits["memory"]) > 2**28 + 3 * 2**24
    assert limits["cpu"] == "500m"
    assert {v["emptyDir"]["sizeLimit"] for v in spec["volumes"]} == {str(2**24)}


async def test_no_cluster_is_found_at_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    probe = await KubernetesBackend().probe()
    assert not probe.available
    assert "there is no kubeconfig at" in probe.detail
    config = tmp_path / "config"
    config.write_text(kubeconfig("http://127.0.0.1:9"))
    monkeypatch.setenv("KUBECONFIG", str(config))
    backend = KubernetesBackend()
    start = time.monotonic()
    with pytest.raises(SandboxUnavailable, match=r"no Kubernetes API at http://127\.0\.0\.1:9"):
        await backend.create(SandboxLimits())
    assert time.monotonic() - start < 30
    await backend.close()
    config.write_text("clusters: 7")
    probe = await KubernetesBackend().probe()
    assert "cannot be used" in probe.detail


def state(**state: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": "n"}, "status": {"containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("pod", "kind", "said"),
    [
        (state(waiting={"reason": "ContainerCreating"}), None, ""),
        (state(waiting={"reason": "ErrImagePull"}), None, ""),
        (state(waiting={"reason": "InvalidImageName"}), SandboxUnavailable, "registry"),
        (state(waiting={"reason": "CreateContainerConfigError", "message": "secret"}),
         SandboxUnavailable, "cannot be made"),
        (state(waiting={"reason": "CreateContainerError", "message": "deadline exceeded"}),
         SandboxError, "deadline exceeded"),
        (state(terminated={"reason": "StartError", "message": 'exec: "python3": executable file'
                           " not found in $PATH"}), SandboxUnavailable, "no python3"),
        ({"status": {"phase": "Failed", "reason": "OutOfmemory", "message": "full"}},
         SandboxLost, "OutOfmemory: full"),
        ({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Pending"}},
         SandboxLost, "deleted"),
    ],
)  # fmt: skip
def test_a_status_says_what_keeps_a_pod_from_starting(
    pod: dict[str, Any], kind: type[SandboxError] | None, said: str
) -> None:
    found = verdicts.start_trouble(pod, "i")
    assert (type(found) if found else None) is kind
    assert said in str(found)


def test_a_status_says_what_ended_a_pod() -> None:
    moved = {"type": "DisruptionTarget", "status": "True", "message": "preempted by x"}
    assert "preempted by x" in verdicts.why_ended({"status": {"conditions": [moved]}})
    lost = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    assert "is lost" in verdicts.why_ended({"status": {"conditions": [lost]}})
    assert "exit code 3" in verdicts.why_ended(state(terminated={"reason": "Error", "exitCode": 3}))
    assert verdicts.why_ended(state(running={})) == ""
    assert "deleted" in verdicts.why_ended(None)


def ended(reason: str, message: str = "") -> dict[str, Any]:
    return {"status": {"phase": "Failed", "reason": reason, "message": message}}


def disrupted(reason: str) -> dict[str, Any]:
    found = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return {"status": {"conditions": [found]}}


LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "


@pytest.mark.parametrize(
    ("pod", "outside"),
    [
        (None, True),
        (ended("NodeLost"), True),
        (ended("Evicted", LOW), True),
        (ended("Terminated", "Pod was terminated in response to imminent node shutdown."), True),
        (disrupted("EvictionByEvictionAPI"), True),
        (disrupted("DeletionByTaintManager"), True),
        ({"metadata": {"deletionTimestamp": "x"}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown",
                                     "reason": "NodeStatusUnknown"}]}}, True),
        # What a program in the pod can do itself.
        (ended("Evicted", LOW + "Container sandbox was using 3Gi, request is 1Gi, has larger "
               "consumption of memory. "), False),
        (ended("Evicted", 'Usage of EmptyDir volume "work" exceeds the limit "16Mi". '), False),
        (ended("Evicted", "Pod ephemeral local storage usage exceeds the total limit of "
               "containers 1Gi. "), False),
        (ended("Evicted"), False),
        (ended("DeadlineExceeded"), False),
        (disrupted("TerminationByKubelet"), False),
        (state(terminated={"reason": "OOMKilled", "exitCode": 137}), False),
        (state(terminated={"reason": "Error", "exitCode": 3}), False),
        (state(terminated={"reason": "Completed", "exitCode": 0}), False),
        (state(running={}), False),
    ],
)  # fmt: skip
def test_only_what_a_program_cannot_cause_is_taken_for_the_cluster(
    pod: dict[str, Any] | None, outside: bool
) -> None:
    # Fails if two evictions of a spot node cost a model its reward, or filling a volume saves one.
    assert verdicts.ended_outside(pod) is outside
    assert (type(verdicts.ended_early(pod, "i")) is SandboxLost) is outside


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_api_that_cannot_serve_now_is_outside_of_every_pod(status: int) -> None:
    error = as_sandbox_error("pod", "http://api", "n", ApiRefusal(status, "later"))
    assert type(error) is SandboxLost
    assert type(unreachable("pod", "http://api", OSError("gone"), known=True)) is SandboxLost


@pytest.mark.parametrize("reads", [True, False])
async def test_a_lost_node_reaches_whoever_waits_for_an_answer(reads: bool, api: OneAttach) -> None:
    closing = asyncio.Event()

    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01" + wire.HEAD.pack(0, wire.READY, 0))
        await closing.wait()

    api.script = script
    streams = await api.open("its node n is lost", EndedOutside)
    channel = Channel(streams, streams)
    await channel.start(b"", timeout_s=120.0)
    if reads:
        asyncio.get_running_loop().call_later(0.1, closing.set)
    else:
        closing.set()
        while channel.open:
            await asyncio.sleep(0.01)
    for _ in range(2):
        with pytest.raises(SandboxLost, match="node n is lost"):
            await channel.request(wire.READ, {}, timeout_s=120.0)
    await channel.close("closed")
    await streams.end()


def test_a_pod_is_left_when_its_owner_is_dead_or_it_ended_long_ago() -> None:
    # Fails if a pod of a live owner elsewhere is deleted, or an ended one lies there for ever.
    now = 2_000_000_000.0
    mine = {"annotations": labels(SandboxLimits()), "creationTimestamp": "2030-01-01T00:00:00Z"}
    far = {**mine, "annotations": {"agentrl.owner": "elsewhere:1:0:2:3", "agentrl.lease": "9" * 11}}
    ended = state(terminated={"finishedAt": "2033-05-18T03:00:00Z"})["status"]
    fresh = state(terminated={"finishedAt": "2033-05-18T03:33:00Z"})["status"]
    assert not is_left({"metadata": mine}, now=0.0)
    assert not is_left({"metadata": far}, now=now)
    assert is_left({"metadata": far, "status": {**ended, "phase": "Failed"}}, now=now)
    assert not is_left({"metadata": far, "status": {**fresh, "phase": "Failed"}}, now=now)
    assert not is_left({"metadata": far, "status": {**ended, "phase": "Running"}}, now=now)
    leaving = {**far, "deletionTimestamp": "2033-05-18T03:00:00Z"}
    assert not is_left({"metadata": leaving, "status": {**ended, "phase": "Failed"}}, now=now)


@pytest.mark.parametrize("same", [True, False])
def test_a_supervisor_starts_under_a_python_of_another_version(same: bool) -> None:
    # Fails if only code is sent, which another version cannot read.
    launch = ProcessBackend().launch(SandboxLimits(), 1)
    frame = portable_frame({**launch.config, "tell": True, "remove": True})
    config = marshal.loads(frame[wire.HEAD.size :])
    if not same:
        config["version"] = ["cpython", 3, 99]
        config["modules"] = [(name, text, b"unreadable") for name, text, _ in config["modules"]]
    body = marshal.dumps(config, 2)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PORTABLE_BOOT % 20],
        input=wire.HEAD.pack(len(body), wire.CONFIG, 0) + body,
        capture_output=True,
        timeout=600,
        env={"FLAVOUR": "x"},
    )
    assert done.stderr == b""
    size, kind, _ = wire.HEAD.unpack(done.stdout[: wire.HEAD.size])
    assert kind == wire.READY
    variables, _ = decode_surroundings(done.stdout[wire.HEAD.size :][:size])
    assert variables["FLAVOUR"] == "x"


@pytest.mark.parametrize(
    "body",
    [
        marshal.dumps({"variables": {}, "writable": []}, 2),
        b"[" * 100_000,
        b"\xff",
        b"[]",
        b'{"variables": {}}',
        b'{"variables": {"A": 1}, "writable": []}',
        b'{"variables": {}, "writable": [["/"]]}',
    ],
)
def test_what_an_image_says_of_itself_is_not_believed(body: bytes) -> None:
    # Fails if bytes that an image's own python3 made are unmarshalled, or taken in any shape.
    with pytest.raises(SandboxError, match="it reports"):
        decode_surroundings(body)


async def test_a_report_without_end_is_refused() -> None:
    class Nowhere:
        def write(self, data: bytes, /) -> None: ...
        async def drain(self) -> None: ...
        def close(self) -> None: ...

    reader = asyncio.StreamReader()
    reader.feed_data(wire.HEAD.pack(2**21, wire.READY, 0))
    with pytest.raises(SandboxError, match="a frame of 2097152 bytes"):
        await Channel(reader, Nowhere()).start(b"", timeout_s=120.0)


def test_a_supervisor_to_whom_nobody_speaks_ends() -> None:
    # Fails if a pod whose owner died before it attached lives until its deadline.
    waiting = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PORTABLE_BOOT % 1],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert waiting.wait(timeout=120) == 1
    assert waiting.stderr is not None
    assert b"nobody has attached" in waiting.stderr.read()
    waiting.stderr.close()
    assert waiting.stdin is not None
    waiting.stdin.close()


class OneAttach:
    """An API server that knows one request."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.script: Script | None = None
        self.protocols = ("v5.channel.k8s.io", "v4.channel.k8s.io")
        self._folder, self._patch = folder, patch

    async def _attach(self, request: web.Request) -> web.WebSocketResponse:
        assert request.query == {
            "container": "sandbox", "stdin": "true", "stdout": "true", "stderr": "true",
        }  # fmt: skip
        socket = web.WebSocketResponse(protocols=self.protocols, max_msg_size=2**20)
        await socket.prepare(request)
        assert self.script is not None
        await self.script(socket)
        return socket

    async def open(self, why: str = "", kind: type[Exception] | None = None) -> PodStreams:
        app = web.Application()
        app.add_routes([web.get("/api/v1/namespaces/sandboxes/pods/p/attach", self._attach)])
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        host, port = self.runner.addresses[0]
        config = self._folder / "config"
        config.write_text(kubeconfig(f"http://{host}:{port}"))
        self._patch.setenv("KUBECONFIG", str(config))
        self.cluster = Cluster()
        await self.cluster.open()

        async def reason() -> str:
            if kind is not None:
                raise kind(why)
            return why

        return await attach(self.cluster, "p", "sandbox", reason)

    async def close(self) -> None:
        await self.cluster.aclose()
        await self.runner.cleanup()


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OneAttach]:
    found = OneAttach(tmp_path, monkeypatch)
    yield found
    await found.close()


async def test_channels_are_taken_apart_wherever_messages_end(api: OneAttach) -> None:
    async def script(socket: web.WebSocketResponse) -> None:
        for message in (
            b"\x01",
            b"\x02",
            b"\x03",
            b"\x01on",
            b"\x02trouble",
            b"\x01e" + b"x" * 700,
        ):
            await socket.send_bytes(message)
        await socket.send_bytes(b'\x03{"status": "Failure", "message": "no such container"}')

    api.script = script
    streams = await api.open()
    assert await streams.readexactly(3) == b"one"
    assert await streams.readexactly(700) == b"x" * 700
    assert streams.errors == "trouble"
    with pytest.raises(ConnectionError, match="no such container"):
        await streams.readexactly(1)
    with pytest.raises(ConnectionError):
        await streams.drain()
    await streams.end()


async def test_what_became_of_the_pod_is_asked_first(api: OneAttach) -> None:
    async def script(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x01half")

    api.script = script
    streams = await api.open("its pod was deleted")
    with pytest.raises(ConnectionError, match="its pod was deleted"):
        await streams.readexactly(5)
    await streams.end()


async def test_bytes_go_in_order_and_wait_for_a_slow_server(api: OneAttach) -> None:
    # Fails if memory grows with what a server does not take, or if writes overtake each other.
    go, taken = asyncio.Event(), bytearray()

    async def script(socket: web.WebSocketResponse) -> None:
        await go.wait()
        async for message in socket:
            assert message.data[0] == 0
            taken.extend(message.data[1:])

    api.script = script
    streams = await api.open()
    sent = b"".join(struct.pack(">I", n) for n in range(24 * WINDOW // 4))
    for at in range(0, len(sent), 2**18):
        streams.write(sent[at : at + 2**18])
    waiting = asyncio.create_task(streams.drain())
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    go.set()
    await asyncio.wait_for(waiting, 120)
    while len(taken) < len(sent):
        await asyncio.sleep(0.01)
    assert taken == sent
    await streams.end()


async def test_a_server_of_another_protocol_is_refused(api: OneAttach) -> None:
    async def script(socket: web.WebSocketResponse) -> None:
        await socket.receive()

    api.script, api.protocols = script, ("channel.k8s.io",)
    with pytest.raises(ConnectionError, match=r"speaks none of v5\.channel\.k8s\.io"):
        await api.open()


@contextlib.asynccontextmanager
async def served(
    folder: Path, patch: pytest.MonkeyPatch, routes: list[web.RouteDef]
) -> AsyncIterator[None]:
    """An API server of a few requests, as the cluster of the kubeconfig."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    config = folder / "config"
    config.write_text(kubeconfig(f"http://{host}:{port}"))
    patch.setenv("KUBECONFIG", str(config))
    try:
        yield
    finally:
        await runner.cleanup()


LINE = b'{"type": "ADDED", "object": {"metadata": {"name": "p"}}}\n'


async def watched(
    folder: Path, patch: pytest.MonkeyPatch, answers: list[web.Response], wanted: int
) -> tuple[list[dict[str, Any]], float]:
    """The first pods of a watch that is answered so, and the seconds that it took."""

    async def answer(_: web.Request) -> web.Response:
        return answers.pop(0)

    async with served(folder, patch, [web.get("/api/v1/namespaces/sandboxes/pods", answer)]):
        cluster = Cluster()
        await cluster.open()
        found: list[dict[str, Any]] = []
        start = time.monotonic()
        try:
            async with contextlib.aclosing(cluster.watch("pod p", "p")) as changes:
                async for pod in changes:
                    found.append(pod)
                    if len(found) == wanted:
                        break
        finally:
            await cluster.aclose()
        return found, time.monotonic() - start


@pytest.mark.parametrize("line", [LINE[:20], b'{"kind": "Status"}\n', b"[]\n", b"7\n"])
async def test_a_watch_that_is_broken_off_is_trouble_of_the_sandbox(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxError, match="Kubernetes API"):
        await watched(tmp_path, monkeypatch, [web.Response(body=LINE + line)], 2)


async def test_a_watch_is_asked_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fails if a server that ends watches at once is asked without a pause, or a busy one is not.
    ended = [web.Response(body=b'{"type": "ERROR", "object": {}}\n'), web.Response()]
    busy = web.Response(status=429, headers={"Retry-After": "1"})
    found, took_s = await watched(tmp_path, monkeypatch, [*ended, busy, web.Response(body=LINE)], 1)
    assert found[0]["metadata"]["name"] == "p"
    assert took_s > 1.3


@pytest.mark.parametrize("status", [0, 503])
async def test_the_policy_is_made_by_the_next_start_where_the_first_could_not(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fails if one bad moment of the API leaves the pods of a whole run without a policy.
    policies: list[int] = []

    async def policy(request: web.Request) -> web.Response:
        policies.append(status)
        if len(policies) > 1:
            return web.json_response({}, status=201)
        if not status:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"message": "not now"}, status=status or 500)

    async def no_pods(_: web.Request) -> web.Response:
        return web.json_response({"message": "no pods today"}, status=422)

    async def none(_: web.Request) -> web.Response:
        return web.json_response({"items": []})

    place = "/namespaces/sandboxes"
    routes = [
        web.post(f"/apis/networking.k8s.io/v1{place}/networkpolicies", policy),
        web.post(f"/api/v1{place}/pods", no_pods),
        web.delete(f"/api/v1{place}/pods/{{name}}", none),
        web.get("/{rest:.*}", none),
    ]
    async with served(tmp_path, monkeypatch, routes):
        backend = KubernetesBackend()
        with pytest.raises(SandboxError):
            await backend.create(SandboxLimits())
        starts = [backend.create(SandboxLimits()) for _ in range(3)]
        errors = await asyncio.gather(*starts, return_exceptions=True)
        assert all("no pods today" in str(error) for error in errors)
        assert len(policies) == 2
        await backend.close()
