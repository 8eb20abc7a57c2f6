"""One connection to a Kubernetes API: whose it is, requests, and their errors in our words.

The library finds the cluster and signs requests (kubeconfig with its plugins, or the service
account of the pod that we run in). Objects stay plain dictionaries: its 700 classes would cost more
than all the rest of a start, and say nothing that the API does not.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError, SandboxError, SandboxUnavailable
from agentrl.plugins.distribution import install_command
from agentrl_sandboxes.kubernetes.failures import (
    BUSY,
    ApiRefusal,
    as_sandbox_error,
    refusal,
    unreachable,
)

if TYPE_CHECKING:
    import aiohttp
    from kubernetes_asyncio.client import ApiClient
    from kubernetes_asyncio.client.configuration import Configuration

CALL_S = 30.0
"""How long the API may take for one request; some 10 ms where it is near and idle."""
CONNECT_S = 5.0
"""How long a connection may take to be made; a cluster behind a closed tunnel never answers."""
TRIES = 4
"""How often a request is sent that the API is too busy to take."""
PAUSE_S = 5.0
"""The longest wait that the API may ask for between two tries."""
WATCH_PAUSE_S = 0.2
"""Between the end of a watch and the next one, which a server may end at once as well."""
IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its own account."""
POLICIES = "/apis/networking.k8s.io/v1"
"""Path of network policies, before `/namespaces`."""
CORE = "/api/v1"
"""Path of pods, before `/namespaces`."""


def kubeconfig() -> str:
    """Paths that kubectl would read: those of KUBECONFIG, or the usual one; empty for none."""
    named = os.environ.get("KUBECONFIG", "")
    found = [part for part in named.split(os.pathsep) if part and Path(part).is_file()]
    usual = Path("~/.kube/config").expanduser()
    if not named and usual.is_file():
        found.append(str(usual))
    return os.pathsep.join(found)


def in_cluster() -> bool:
    """True in a pod of a cluster, with an account of its own."""
    return (IN_CLUSTER / "token").is_file()


class Cluster:
    """A namespace of a cluster; opened on first use, because that needs a running event loop."""

    def __init__(self, namespace: str = "") -> None:
        self.namespace = namespace
        self.where = "no cluster yet"
        self.known = False
        """Whether the API has answered."""
        self._api: ApiClient | None = None
        # Guards the first look at the kubeconfig, which many sandboxes may ask for at once.
        self._opening = asyncio.Lock()

    async def open(self) -> ApiClient:
        """The connection to the API, made once.

        Raises:
            ConfigError: the library is missing, or the kubeconfig is wrong.
            SandboxUnavailable: there is no kubeconfig.
        """
        async with self._opening:
            if self._api is None:
                self._api = await self._connect()
            return self._api

    async def _connect(self) -> ApiClient:
        files = kubeconfig()
        if not files and not in_cluster():
            named = os.environ.get("KUBECONFIG")
            raise SandboxUnavailable(
                f"kubernetes: there is no kubeconfig at {named or '~/.kube/config'}; set KUBECONFIG"
                " to the file of the cluster that is to run sandboxes"
            )
        try:
            from kubernetes_asyncio.client import ApiClient
            from kubernetes_asyncio.client.configuration import Configuration
        except ImportError as error:
            raise ConfigError(
                f"sandbox.backend kubernetes needs the package {error.name!r}; run "
                f"{install_command('kubernetes')}"
            ) from error
        settings = Configuration()
        await self._configure(settings, files)
        # Each open sandbox holds a connection.
        settings.connection_pool_maxsize = 0
        self.where = str(settings.host)
        return ApiClient(settings)

    async def _configure(self, settings: Configuration, files: str) -> None:
        from kubernetes_asyncio import config

        namespace = "default"
        try:
            async with asyncio.timeout(CALL_S):
                if files:
                    await config.load_kube_config(files, client_configuration=settings)
                    _, current = config.list_kube_config_contexts(files)
                    namespace = ((current or {}).get("context") or {}).get("namespace", namespace)
                else:
                    config.load_incluster_config(client_configuration=settings)
                    namespace = (IN_CLUSTER / "namespace").read_text(encoding="utf-8").strip()
        except TimeoutError as error:
            raise SandboxError("kubernetes: a plugin of the kubeconfig does not answer") from error
        except Exception as error:  # plugins raise anything, and none of it is ours
            raise ConfigError(
                f"kubernetes: the kubeconfig {files or IN_CLUSTER} cannot be used: {error}"
            ) from error
        self.namespace = self.namespace or namespace

    async def call(
        self,
        what: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        group: str = CORE,
        everywhere: bool = False,
    ) -> dict[str, Any]:
        """One request and its answer; waits and tries again while the API is too busy.

        Args:
            what: the subject of messages.
            method: of HTTP.
            path: below the namespace, as `pods/NAME`.
            query: of the address.
            body: an object of the API.
            group: path of the group of objects.
            everywhere: in all namespaces.

        Raises:
            ApiRefusal: a status that the caller has to judge; see `errors`.
            SandboxError: the API does not answer.
        """
        for left in reversed(range(TRIES)):
            try:
                answer = await self._send(
                    what, method, self._path(path, group, everywhere), query, body
                )
                return dict(json.loads(answer))
            except ApiRefusal as error:
                if not left or error.status != BUSY:
                    raise
                await asyncio.sleep(min(PAUSE_S, error.retry_after_s or 0.5))
        raise AssertionError("unreachable")

    async def _send(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
    ) -> bytes:
        import aiohttp

        try:
            for fresh in (False, True):
                # Plugins give out tokens for a while only.
                response = await self._request(method, path, query, body, fresh=fresh)
                async with response:
                    answer = await response.read()
                if response.status != 401:
                    break
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise unreachable(what, self.where, error, known=self.known) from error
        self.known = self.known or response.status < 500
        if not response.ok:
            raise refusal(response.status, answer, response.headers)
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        *,
        fresh: bool = False,
        timeout_s: float = CALL_S,
    ) -> aiohttp.ClientResponse:
        # To be connected, and to say something.
        limits: Any = (CONNECT_S, timeout_s)
        api = await self.open()
        if fresh:
            # Into the same settings: its other connections are those of open sandboxes.
            await self._configure(api.configuration, kubeconfig())
        headers = await self._headers(api)
        return await api.rest_client.request(
            method,
            self.where + path,
            query_params=dict(query or {}),
            headers=headers,
            body=body,
            _preload_content=False,
            _request_timeout=limits,
        )

    async def _headers(self, api: ApiClient) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "agentrl"}
        await api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def watch(self, what: str, name: str) -> AsyncGenerator[dict[str, Any]]:
        """A pod as it is now and after each change, for ever; ends when it is deleted.

        While the API is too busy it is asked again, `TRIES` times in a row.

        Raises:
            ApiRefusal: the API does not let us.
            SandboxError: it does not answer, or what it says cannot be read.
        """
        import aiohttp

        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={name}",
            "timeoutSeconds": str(int(CALL_S)),
        }
        left = TRIES
        while True:
            pause_s = WATCH_PAUSE_S
            try:
                response = await self._request(
                    "GET", self._path("pods"), query, timeout_s=2 * CALL_S
                )
                async with response:
                    if not response.ok:
                        raise refusal(response.status, await response.read(), response.headers)
                    left = TRIES
                    async for line in response.content:
                        kind, pod = _event(line)
                        if kind == "DELETED":
                            return
                        if kind == "ERROR":
                            # Too old a version of the list; the next one starts afresh.
                            break
                        if kind != "BOOKMARK":
                            yield pod
            except ApiRefusal as error:
                left -= 1
                if not left or error.status != BUSY:
                    raise
                pause_s = min(PAUSE_S, error.retry_after_s or 0.5)
            # A ValueError: a line that a proxy broke off, or one longer than the buffer.
            except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
                raise unreachable(what, self.where, error, known=self.known) from error
            await asyncio.sleep(pause_s)

    async def websocket(
        self, path: str, query: Mapping[str, str], protocols: tuple[str, ...], heartbeat_s: float
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a web socket to an object.

        Raises:
            ApiRefusal: the API says no.
            OSError, aiohttp.ClientError: it cannot be reached.
        """
        import aiohttp
        from yarl import URL

        api = await self.open()
        rest = api.rest_client
        url = URL(self.where + self._path(path)).with_query(dict(query))
        try:
            async with asyncio.timeout(CALL_S):
                return await rest.pool_manager.ws_connect(
                    url.with_scheme("wss" if url.scheme == "https" else "ws"),
                    protocols=protocols,
                    # An attach has no type of content; servers refuse (406) who names one.
                    headers=await self._headers(api) | {"Accept": "*/*"},
                    heartbeat=heartbeat_s,
                    max_msg_size=0,
                    proxy=rest.proxy,
                    proxy_headers=rest.proxy_headers,
                    server_hostname=rest.server_hostname,
                )
        except aiohttp.WSServerHandshakeError as error:
            # The words of the answer are lost with it.
            said = f"attach to a pod: status {error.status}"
            if error.status == 403:
                said = f"{said}: this account cannot get and create pods/attach"
            raise ApiRefusal(error.status, said) from error

    def _path(self, path: str, group: str = CORE, everywhere: bool = False) -> str:
        return f"{group}/{path}" if everywhere else f"{group}/namespaces/{self.namespace}/{path}"

    def error(self, what: str, found: ApiRefusal) -> SandboxError:
        """The error of a refusal; see `as_sandbox_error`."""
        return as_sandbox_error(what, self.where, self.namespace, found)

    async def aclose(self) -> None:
        """Drop the connection; the next use opens one again."""
        api, self._api = self._api, None
        if api is not None:
            await api.close()


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """The kind and the object of a line of a watch.

    Raises:
        ValueError: it is no event.
    """
    event: Any = json.loads(line)
    try:
        kind, found = event["type"], event["object"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an event of a watch: {line[:100]!r}") from error
    if not isinstance(kind, str) or not isinstance(found, dict):
        raise ValueError(f"not an event of a watch: {line[:100]!r}")
    return kind, found
