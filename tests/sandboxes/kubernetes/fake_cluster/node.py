"""The node: each pod is a container of the local Docker daemon, with what a kubelet would give it.

Statuses follow the published states: waiting with a reason, running, terminated with a reason.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import aiohttp

from tests.sandboxes.kubernetes.fake_cluster.rules import amount
from tests.sandboxes.kubernetes.fake_cluster.store import Store, key, stamp

SOCKET = "/var/run/docker.sock"
LABEL = "agentrl.fake-cluster"
NODE = "node-1"
NODE_LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": NODE}
PULL_S = 0.2
"""Between a failed pull and giving up for a while."""


class Node:
    """Runs the pods of a store."""

    def __init__(self, store: Store, folder: Path, address: tuple[str, int]) -> None:
        """A node for `store`, with files in `folder`; pods are told of the API at `address`."""
        self._store = store
        self._folder = folder
        self._address = address
        self._docker = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(SOCKET, limit=0), timeout=aiohttp.ClientTimeout(120)
        )
        self._containers: dict[tuple[str, str], str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, pod: dict[str, Any]) -> None:
        """Schedule and run a pod, in the background."""
        task = asyncio.create_task(self._run(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every pod that runs."""
        for pod in list(self._store.pods.values()):
            await self.delete(pod, 0.0)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._docker.close()

    async def _run(self, pod: dict[str, Any]) -> None:
        spec, status = pod["spec"], pod["status"]
        wanted: dict[str, str] = spec.get("nodeSelector", {})
        if not wanted.items() <= NODE_LABELS.items():
            said = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
            failed = {"status": "False", "reason": "Unschedulable", "message": said}
            status["conditions"] = [{"type": "PodScheduled", **failed}]
            self._store.change(pod)
            return
        spec["nodeName"] = NODE
        status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        status["startTime"] = stamp()
        self._state(pod, {"waiting": {"reason": "ContainerCreating"}})
        try:
            name = await self._made(pod)
        except RuntimeError as error:
            reason, said = error.args
            self._state(pod, {"waiting": {"reason": reason, "message": said}})
            if reason == "ErrImagePull":
                await asyncio.sleep(PULL_S)
                image = pod["spec"]["containers"][0]["image"]
                said = f'Back-off pulling image "{image}"'
                self._state(pod, {"waiting": {"reason": "ImagePullBackOff", "message": said}})
            return
        if key(pod) not in self._store.pods:
            await self._kill(name)
            return
        self._containers[key(pod)] = name
        waiting = asyncio.create_task(
            self._call("POST", f"containers/{name}/wait?condition=next-exit")
        )
        try:
            await self._call("POST", f"containers/{name}/start")
        except RuntimeError as error:
            waiting.cancel()
            ended = {"reason": "StartError", "exitCode": 128, "message": str(error.args[1])}
            self._end(pod, {**ended, "finishedAt": stamp()})
            return
        status["phase"] = "Running"
        self._state(pod, {"running": {"startedAt": stamp()}})
        seconds = spec.get("activeDeadlineSeconds")
        try:
            async with asyncio.timeout(seconds):
                code = (await waiting)["StatusCode"]
        except TimeoutError:
            status |= {"reason": "DeadlineExceeded", "message": "Pod was active too long"}
            await self._kill(name)
            code = 137
        reason = "Completed" if not code else pod.pop("_reason", "Error")
        self._end(pod, {"reason": reason, "exitCode": code, "finishedAt": stamp()})

    def _state(self, pod: dict[str, Any], state: dict[str, Any]) -> None:
        name = pod["spec"]["containers"][0]["name"]
        pod["status"]["containerStatuses"] = [{"name": name, "state": state, "restartCount": 0}]
        self._store.change(pod)

    def _end(self, pod: dict[str, Any], ended: dict[str, Any]) -> None:
        good = not ended["exitCode"] and not pod["status"].get("reason")
        pod["status"]["phase"] = "Succeeded" if good else "Failed"
        self._state(pod, {"terminated": ended})
        self._containers.pop(key(pod), None)

    async def _made(self, pod: dict[str, Any]) -> str:
        """Make the container of a pod; `RuntimeError` has reason and message of its waiting."""
        container = pod["spec"]["containers"][0]
        image = container["image"]
        try:
            found = await self._call("GET", f"images/{image}/json")
        except RuntimeError as error:
            said = f'failed to pull and unpack image "{image}": not found'
            raise RuntimeError("ErrImagePull", said) from error
        name = f"fake-{pod['metadata']['namespace']}-{pod['metadata']['name']}"
        log = self._folder / name
        log.touch()
        log.chmod(0o666)
        request = _request(pod, found["Config"], self._open_network(pod), self._address)
        request["HostConfig"]["Binds"] = [f"{log}:{container['terminationMessagePath']}"]
        try:
            await self._call("POST", f"containers/create?name={name}", request)
        except RuntimeError as error:
            raise RuntimeError("CreateContainerError", error.args[1]) from error
        return name

    def _open_network(self, pod: dict[str, Any]) -> bool:
        """True if no policy keeps packets from leaving it."""
        for (namespace, _), policy in self._store.policies.items():
            labels: dict[str, str] = policy["spec"]["podSelector"].get("matchLabels", {})
            own = pod["metadata"].get("labels", {})
            closed = {"Ingress", "Egress"} <= set(policy["spec"]["policyTypes"])
            if namespace == key(pod)[0] and labels.items() <= own.items() and closed:
                return False
        return True

    async def delete(self, pod: dict[str, Any], grace_s: float) -> None:
        """End a pod: its program may go by itself for a while, then it is killed."""
        name = self._containers.get(key(pod))
        if name and grace_s:
            for _ in range(int(grace_s * 50)):
                if key(pod) not in self._containers:
                    break
                await asyncio.sleep(0.02)
        if name:
            await self._kill(name)
        self._store.remove(pod)
        (self._folder / f"fake-{'-'.join(key(pod))}").unlink(missing_ok=True)

    async def happen(self, pod: dict[str, Any], what: str) -> None:
        """Let a pod be ended by something else than itself: `evict`, `oom` or `lost`."""
        name = self._containers[key(pod)]
        if what == "evict":
            said = "The node was low on resource: memory."
            pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": said}
        elif what == "oom":
            pod["_reason"] = "OOMKilled"
        else:
            said = "Node is not responding"
            pod["status"] |= {"reason": "NodeLost", "message": said}
        self._store.change(pod)
        await self._kill(name)

    async def _kill(self, name: str) -> None:
        try:
            await self._call("DELETE", f"containers/{name}?force=1&v=1")
        except RuntimeError:
            return

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://docker/v1.41/{path}"
        timeout = aiohttp.ClientTimeout(total=None if "/wait?" in path else 60)
        async with self._docker.request(method, url, json=body, timeout=timeout) as answer:
            text = await answer.text()
            found = json.loads(text) if text.strip() else {}
            if answer.status >= 400:
                raise RuntimeError(answer.status, found.get("message", text))
            return found

    async def attach(
        self, pod: dict[str, Any]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raw streams of a container: stdin, and Docker's frames of stdout and stderr."""
        name = self._containers[key(pod)]
        reader, writer = await asyncio.open_unix_connection(SOCKET)
        request = (
            f"POST /v1.41/containers/{name}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
            "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        )
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head.splitlines()[0]:
            writer.close()
            raise RuntimeError(400, head.decode())
        return reader, writer


FRAME = struct.Struct(">BxxxL")
"""Docker's frames: stream, length."""


def _request(
    pod: dict[str, Any], image: dict[str, Any], open_network: bool, address: tuple[str, int]
) -> dict[str, Any]:
    """The container, as a kubelet and its runtime would make it."""
    spec = pod["spec"]
    container = spec["containers"][0]
    own, limits = container["securityContext"], container["resources"]["limits"]
    sizes = {
        volume["name"]: int(amount(volume["emptyDir"]["sizeLimit"])) for volume in spec["volumes"]
    }
    # A file system in memory comes without restrictions, and everybody may write.
    options = "rw,exec,suid,dev,mode=1777"
    tmpfs = {
        m["mountPath"]: f"{options},size={sizes[m['name']]}" for m in container["volumeMounts"]
    }
    host, port = address
    variables = [*(image.get("Env") or ()), f"KUBERNETES_SERVICE_HOST={host}"]
    return {
        "Image": container["image"],
        "Entrypoint": [],
        "Cmd": container["command"],
        "Env": [*variables, f"KUBERNETES_SERVICE_PORT={port}"],
        "User": f"{own['runAsUser']}:{own['runAsGroup']}",
        "WorkingDir": container["workingDir"],
        "Hostname": "" if open_network else spec["hostname"],
        "OpenStdin": container["stdin"],
        "StdinOnce": container["stdinOnce"],
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": {LABEL: "pod"},
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "host" if open_network else "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "CapDrop": own["capabilities"]["drop"],
            "SecurityOpt": [] if own["allowPrivilegeEscalation"] else ["no-new-privileges"],
            "ReadonlyRootfs": own["readOnlyRootFilesystem"],
            "Tmpfs": tmpfs,
            "Memory": int(amount(limits["memory"])),
            "MemorySwap": int(amount(limits["memory"])),
            "NanoCpus": round(amount(limits["cpu"]) * 1e9),
            # A kubelet's default is no limit, and it burns them into the score of its pods.
            "PidsLimit": -1,
            "OomScoreAdj": 500,
        },
    }


def forget_folder(folder: Path) -> None:
    """Remove the files of a node."""
    shutil.rmtree(folder, ignore_errors=True)
