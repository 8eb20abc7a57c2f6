"""The API server: pods, their attach, network policies; accounts, rights, refusals on demand.

Beside the published paths, `/fake/refuse` queues refusals and `/fake/pods/NAME/EVENT` lets
something happen to a pod, so that tests in another process can ask for trouble.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any

from aiohttp import WSMsgType, web

from tests.sandboxes.kubernetes.fake_cluster.node import FRAME, Node
from tests.sandboxes.kubernetes.fake_cluster.rules import complaints
from tests.sandboxes.kubernetes.fake_cluster.store import Store, key, stamp

TOKEN = "the-token-of-the-tests"
USER = "tester"
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CLOSE = 255
VERBS = {"POST": "create", "DELETE": "delete"}


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    """An answer that is not a success."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code, headers=headers)


def kubeconfig(address: str) -> str:
    """The file by which clients find the cluster; JSON is YAML too."""
    named = {"name": "fake"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{**named, "cluster": {"server": address}}],
        "users": [{**named, "user": {"token": TOKEN}}],
        "contexts": [
            {**named, "context": {"cluster": "fake", "user": "fake", "namespace": "sandboxes"}}
        ],
    }
    return json.dumps(config)


class FakeCluster:
    """The handlers of requests."""

    def __init__(
        self, store: Store, namespaces: tuple[str, ...] = ("default", "sandboxes")
    ) -> None:
        self.node: Node
        self._store = store
        self._namespaces = namespaces
        self._refusals: list[dict[str, Any]] = []
        self._transports: dict[str, list[asyncio.Transport]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def application(self) -> web.Application:
        """The routes of the server."""
        app = web.Application(middlewares=[self._guard], client_max_size=2**22)
        pods = "/api/v1/namespaces/{namespace}/pods"
        app.add_routes(
            [
                web.get("/api/v1/pods", self._list),
                web.get(pods, self._list),
                web.post(pods, self._create),
                web.get(pods + "/{name}", self._get),
                web.delete(pods + "/{name}", self._delete),
                web.get(pods + "/{name}/attach", self._attach),
                web.post(
                    "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
                    self._create_policy,
                ),
                web.post("/fake/refuse", self._refuse),
                web.post("/fake/pods/{name}/{event}", self._happen),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Accounts, rights and namespaces, before anything else."""
        if request.path.startswith("/fake/"):
            return await handler(request)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized", "Unauthorized")
        verb = self._verb(request)
        for rule in self._refusals:
            if re.fullmatch(rule["what"], verb) and rule["times"]:
                rule["times"] -= 1
                wait = {"Retry-After": str(rule["wait"])} if rule.get("wait") else {}
                return status(rule["code"], rule["reason"], rule["message"], **wait)
        namespace = request.match_info.get("namespace")
        unknown = namespace is not None and namespace not in self._namespaces
        if unknown and request.method == "POST":
            return status(404, "NotFound", f'namespaces "{namespace}" not found')
        return await handler(request)

    @staticmethod
    def _verb(request: web.Request) -> str:
        """A request as rules name it: `create pods`, `get pods/attach`, `list pods`."""
        parts = request.path.split("/")
        found = next(n for n, part in enumerate(parts) if part in ("pods", "networkpolicies"))
        resource = "/".join([parts[found], *parts[found + 2 :]])
        if request.method == "GET" and len(parts) == found + 1:
            return f"{'watch' if request.query.get('watch') else 'list'} {resource}"
        return f"{VERBS.get(request.method, 'get')} {resource}"

    async def _refuse(self, request: web.Request) -> web.Response:
        self._refusals = [dict(rule) for rule in await request.json()]
        return web.json_response({})

    async def _happen(self, request: web.Request) -> web.Response:
        name, event = request.match_info["name"], request.match_info["event"]
        pod = next(pod for (_, known), pod in self._store.pods.items() if known == name)
        if event == "cut":
            for transport in self._transports.get(name, ()):
                # Half of a frame: 64 bytes are announced, 3 come.
                transport.write(b"\x82\x40\x01ab")
                transport.close()
        else:
            await self.node.happen(pod, event)
        return web.json_response({})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        found = [pod for pod in self._store.pods.values() if self._fits(request, pod)]
        meta = {"resourceVersion": "1"}
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": found}
        return web.json_response(body)

    @staticmethod
    def _fits(request: web.Request, pod: dict[str, Any]) -> bool:
        namespace, name = key(pod)
        fields = dict(s.split("=") for s in request.query.get("fieldSelector", "").split(",") if s)
        labels = dict(s.split("=") for s in request.query.get("labelSelector", "").split(",") if s)
        own: dict[str, str] = pod["metadata"].get("labels", {})
        return (
            request.match_info.get("namespace", namespace) == namespace
            and fields.get("metadata.name", name) == name
            and labels.items() <= own.items()
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue = self._store.watch()
        try:
            for pod in list(self._store.pods.values()):
                if self._fits(request, pod):
                    await response.write(_line("ADDED", pod))
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "60"))):
                while True:
                    kind, pod = await queue.get()
                    if self._fits(request, pod):
                        await response.write(_line(kind, pod))
        except (TimeoutError, ConnectionError):
            return response
        finally:
            self._store.unwatch(queue)

    async def _create(self, request: web.Request) -> web.Response:
        pod: dict[str, Any] = await request.json()
        if found := complaints("V1Pod", pod):
            name = pod["metadata"]["name"]
            if any("PodSecurity" in text for text in found):
                return status(403, "Forbidden", f'pods "{name}" is forbidden: {"; ".join(found)}')
            return status(422, "Invalid", f'Pod "{name}" is invalid: {"; ".join(found)}')
        if pod["spec"].get("runtimeClassName"):
            said = f'pod rejected: RuntimeClass "{pod["spec"]["runtimeClassName"]}" not found'
            name = pod["metadata"]["name"]
            return status(403, "Forbidden", f'pods "{name}" is forbidden: {said}')
        namespace = request.match_info["namespace"]
        pod["metadata"] |= {
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": stamp(),
        }
        if key(pod) in self._store.pods:
            return status(409, "AlreadyExists", f'pods "{key(pod)[1]}" already exists')
        pod["status"] = {"phase": "Pending"}
        self._store.add(pod)
        self.node.take(pod)
        return web.json_response(pod, status=201)

    def _found(self, request: web.Request) -> dict[str, Any]:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        pod = self._store.pods.get((namespace, name))
        if pod is None:
            answer = status(404, "NotFound", f'pods "{name}" not found')
            raise web.HTTPNotFound(text=answer.text, content_type="application/json")
        return pod

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._found(request))

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self._found(request)
        grace = float(request.query.get("gracePeriodSeconds", "30"))
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = stamp()
            self._store.change(pod)
            task = asyncio.create_task(self.node.delete(pod, grace))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return web.json_response(pod)

    async def _create_policy(self, request: web.Request) -> web.Response:
        policy: dict[str, Any] = await request.json()
        name = policy["metadata"]["name"]
        if found := complaints("V1NetworkPolicy", policy):
            return status(422, "Invalid", f'NetworkPolicy "{name}" is invalid: {"; ".join(found)}')
        policy["metadata"]["namespace"] = request.match_info["namespace"]
        if key(policy) in self._store.policies:
            return status(409, "AlreadyExists", f'networkpolicies "{name}" already exists')
        self._store.policies[key(policy)] = policy
        return web.json_response(policy, status=201)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        pod = self._found(request)
        name = pod["metadata"]["name"]
        if request.headers.get("Accept", "*/*") != "*/*":
            return status(406, "NotAcceptable", "only the following media types are accepted: */*")
        if pod["status"]["phase"] != "Running":
            container = request.query["container"]
            return status(400, "BadRequest", f"container {container} not found in pod {name}")
        socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=2**20)
        await socket.prepare(request)
        assert request.transport is not None
        self._transports[name] = [request.transport]
        reader, writer = await self.node.attach(pod)
        out = asyncio.create_task(_from_pod(reader, socket))
        try:
            # As API servers do at the start of every channel.
            for channel in (1, 2, 3):
                await socket.send_bytes(bytes((channel,)))
            async for message in socket:
                if message.type is not WSMsgType.BINARY or not message.data:
                    continue
                if message.data[0] == CLOSE:
                    break
                if message.data[0] == 0:
                    writer.write(message.data[1:])
                    await writer.drain()
        except ConnectionError:
            pass  # its container has ended
        finally:
            self._transports.pop(name, None)
            out.cancel()
            writer.close()
            await asyncio.wait([out])
            await socket.close()
        return socket


async def _from_pod(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    """Pass on what a container writes, and at its end how it ended."""
    try:
        while True:
            stream, size = FRAME.unpack(await reader.readexactly(FRAME.size))
            await socket.send_bytes(bytes((stream,)) + await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        done = {"metadata": {}, "status": "Success"}
        if not socket.closed:
            await socket.send_bytes(b"\x03" + json.dumps(done).encode())
            await socket.close()


def _line(kind: str, pod: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": pod}).encode() + b"\n"
