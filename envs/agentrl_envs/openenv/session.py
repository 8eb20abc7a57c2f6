"""One episode on an OpenEnv server: its WebSocket protocol, and whose fault an error is.

A server answers every message with an observation or with an error that has a code. Only an action
that the server could not read is the model's doing. Everything else (no server, one at capacity, a
lost connection, an environment that raised) is infrastructure and raises `EnvError`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from agentrl.errors import EnvError

_MESSAGE_BYTES = 16 * 2**20
_SHOWN_CHARS = 500
_ACTION_ERROR = "VALIDATION_ERROR"
_RAISED = "EXECUTION_ERROR"
_FULL = "CAPACITY_REACHED"


class ActionRefused(Exception):
    """The model's text is no action of this environment; the message explains why to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """The server's answer to `reset` or to an action."""

    observation: Mapping[str, Any]
    """The fields of the environment's observation, without reward and done."""
    reward: float
    """Reward of the last action; 0 where the server gives none."""
    done: bool
    """Whether the episode is over."""


class ServerError(EnvError):
    """The server answered with an error; `code` names which, where it is not the model's doing."""

    code: str = ""
    text: str = ""


class ServerSession:
    """A connection to the server, which is one environment of its own there."""

    def __init__(self, url: str, *, timeout_s: float, wait_s: float, token: str = "") -> None:
        """Take where the server is; `begin` connects.

        Args:
            url: `http://`, `https://`, `ws://` or `wss://`, without `/ws`.
            timeout_s: for one answer, in seconds.
            wait_s: for a server that starts or is at capacity, in seconds.
            token: sent as bearer token; empty sends none.
        """
        self._url = "http" + url.rstrip("/").removeprefix("http").removeprefix("ws")
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def begin(self, arguments: Mapping[str, Any]) -> ServerAnswer:
        """Connect and reset; waits while there is no server or it is at capacity.

        Raises:
            EnvError: neither in `wait_s`, or the environment cannot be reset.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_s
        pause = 0.05
        while True:
            try:
                await self._connect()
                return await self._ask("reset", arguments)
            except ServerError as error:
                if error.code != _FULL or loop.time() + pause > until:
                    raise
            except aiohttp.ClientConnectionError as error:
                if loop.time() + pause > until:
                    raise EnvError(
                        f"OpenEnvTask: no OpenEnv server answers at {self._url}: {error}. Start "
                        "it, or correct env.args.url"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def step(self, action: Mapping[str, Any]) -> ServerAnswer:
        """Send one action and return its result.

        Raises:
            ActionRefused: the server cannot read the action.
            ServerError: the environment raised, or the server failed.
            EnvError: the connection is lost, or no answer came in time.
        """
        return await self._ask("step", action)

    async def action_schema(self) -> Mapping[str, Any]:
        """The JSON schema of actions; empty if the server offers none.

        Raises:
            EnvError: the server cannot be asked.
        """
        assert self._http is not None
        try:
            async with self._http.get(f"{self._url}/schema") as response:
                if response.status != 200:
                    return {}
                found = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EnvError(
                f"OpenEnvTask: {self._url}/schema gives no JSON: {type(error).__name__}: {error}"
            ) from error
        schema: Any = found.get("action") if isinstance(found, dict) else None
        return schema if isinstance(schema, dict) else {}

    async def close(self) -> None:
        """End the episode on the server and hang up. May be called twice."""
        socket, http, self._socket, self._http = self._socket, self._http, None, None
        try:
            if socket is not None and not socket.closed:
                # Asked to end, the server frees the session before it hangs up; a slow one is
                # not waited for.
                async with asyncio.timeout(2.0):
                    await socket.send_str('{"type": "close"}')
                    while (await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                        pass
                    await socket.close()
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        finally:
            if http is not None:
                await http.close()

    async def _connect(self) -> None:
        await self.close()
        self._http = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=self._timeout_s)
        )
        try:
            self._socket = await self._http.ws_connect(
                f"{self._url}/ws", max_msg_size=_MESSAGE_BYTES, autoclose=True
            )
        except aiohttp.WSServerHandshakeError as error:
            raise EnvError(
                f"OpenEnvTask: {self._url}/ws answers with status {error.status}, expected a "
                "WebSocket; give the address of an OpenEnv server in env.args.url"
            ) from error
        except TimeoutError as error:
            raise EnvError(
                f"OpenEnvTask: {self._url} took no connection in {self._timeout_s:g} s"
            ) from error

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> ServerAnswer:
        socket = self._socket
        if socket is None:
            raise EnvError(f"OpenEnvTask: {kind} on a closed connection to {self._url}")
        # A full server says so and hangs up before it is asked; that is read below.
        with suppress(aiohttp.ClientError, OSError):
            await socket.send_str(json.dumps({"type": kind, "data": data}))
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await socket.receive()
        except TimeoutError as error:
            raise EnvError(
                f"OpenEnvTask: {self._url} gave no answer to {kind} in {self._timeout_s:g} s; "
                "raise env.args.timeout_s (below rollout.env_timeout_s) if it needs longer"
            ) from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            why = message.data if isinstance(message.data, Exception) else message.type.name
            raise EnvError(f"OpenEnvTask: {self._url} hung up during {kind} ({why})")
        return self._read(kind, message.data, data)

    def _read(self, kind: str, text: str, sent: Mapping[str, Any]) -> ServerAnswer:
        try:
            message = json.loads(text)
            what, data = message["type"], message["data"]
            if what == "error":
                self._complain(kind, data, sent)
            return _answer(what, data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise EnvError(
                f"OpenEnvTask: {self._url} answered {kind} with {text[:_SHOWN_CHARS]!r}, expected "
                f"an observation of the OpenEnv protocol: {type(error).__name__}: {error}"
            ) from error

    def _complain(self, kind: str, data: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
        code, text = str(data.get("code", "")), str(data.get("message", ""))
        problems: Any = data.get("errors") or ()
        if kind == "step" and code == _ACTION_ERROR and _about(problems, sent):
            raise ActionRefused("; ".join(_sentence(problem) for problem in problems[:3]))
        todo = {
            _FULL: "; raise max_concurrent_envs of the server, or run fewer rollouts at once",
            _RAISED: "; see the log of the server. If it raises to refuse an action, set "
            "env.args.on_error to 'feedback'",
        }.get(code, "")
        error = ServerError(
            f"OpenEnvTask: {self._url} answered {kind} with {code}: {text[:_SHOWN_CHARS]}{todo}"
        )
        error.code, error.text = code, text[:_SHOWN_CHARS]
        raise error


def _answer(what: str, data: Mapping[str, Any]) -> ServerAnswer:
    observation, reward, done = data["observation"], data.get("reward"), data.get("done", False)
    if what != "observation" or not isinstance(observation, dict) or not isinstance(done, bool):
        raise TypeError("type must be 'observation', data.observation an object, data.done a bool")
    number = 0.0 if reward is None else float(reward)
    if isinstance(reward, str) or not math.isfinite(number):
        raise TypeError(f"data.reward is {reward!r}, expected a finite number or null")
    return ServerAnswer(observation=observation, reward=number, done=done)


def _about(problems: Sequence[Any], action: Any) -> bool:
    """True if all problems are with values of the action that was sent.

    An environment that builds a wrong observation fails with the same code.
    """
    return bool(problems) and all(
        isinstance(problem, dict) and _within(problem.get("input"), action)  # pyright: ignore
        for problem in problems
    )


def _within(value: Any, whole: Any) -> bool:
    if type(value) is type(whole) and value == whole:
        return True
    if isinstance(whole, dict):
        return any(_within(value, part) for part in whole.values())  # pyright: ignore
    return isinstance(whole, list) and any(_within(value, part) for part in whole)  # pyright: ignore


def _sentence(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in problem.get("loc") or ())
    what = str(problem.get("msg", "is not valid"))
    # Names in `loc` may be the model's own, and a message may list hundreds of valid values.
    return (f"{where}: {what}" if where else what)[:_SHOWN_CHARS]
