"""Rollouts whose agent lives elsewhere: it asks for a task, plays it, and posts a reward.

    POST /sessions/next   a rollout that waits: task, secret and address of its session
    POST /sessions        a rollout of a task that the agent brings, where the run takes those
    POST /s/SECRET/...    turns, as everywhere; then POST /s/SECRET/v1/reward ends the rollout

The first two need the token of the desk, `gateway_token`: other programs of the machine, and web
pages in its browsers, could take rollouts and post rewards otherwise. `OutsideAgent` is an
environment like any other. Its rollouts wait at the desk of their process until an agent takes
them, so groups, limits, retries, resume and training are those of every run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.env import StepResult
from agentrl.errors import ConfigError, EnvError
from agentrl.gateway.agent_loop import SessionLoop
from agentrl.gateway.app import Gateway, Receive, Scope, Send, send_json, until_gone
from agentrl.gateway.asked import own_task, wanted_rollout
from agentrl.gateway.listen import listening
from agentrl.gateway.opened import OpenedRollout, SessionAgent
from agentrl.gateway.posted import agreed
from agentrl.gateway.records import RefusalReason, RequestRefused
from agentrl.gateway.session import GatewaySession
from agentrl.gateway.side_model import SideCalls
from agentrl.machine.web_origin import is_loopback
from agentrl.rollout.coerce import as_step_result
from agentrl.rollout.long_texts import IMAGE_WORK, LongTexts
from agentrl.rollout.own_loop import RolloutLoop
from agentrl.types import Task

NEXT = "sessions/next"
"""Path below `/v1/` that hands out a rollout."""
OWN = "sessions"
"""Path below `/v1/` that begins a rollout of a task of the agent's own."""
TOKEN_ENV = "AGENTRL_GATEWAY_TOKEN"
"""Variable that holds the access token where the config names none."""
PORT = 8642
"""Port where rollouts wait if the config names none."""
_BEGIN_S = 60.0
"""Longest time from a task that an agent brings to its session."""


@dataclass(eq=False)
class WaitingRollout:
    """A rollout at the desk."""

    task: Task
    """The task to play."""
    session: GatewaySession
    """Where its turns are asked for."""
    names: Mapping[str, str]
    """Ids of rollout and group, for the log of the agent."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once an agent has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunTask:
    """The group of a task that an agent brought."""

    group: str
    """Its id; it has one rollout."""
    running: asyncio.Task[None]
    """Ends when the group is recorded; cancelling it ends the group without a record."""


BeginTask = Callable[[Task], BegunTask]
"""Begins the group of a task that an agent brought."""


class AgentDesk(Gateway):
    """Serves sessions on a port, and hands waiting rollouts to the agents that ask."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        token: str,
        names: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> None:
        """Listen to nothing yet; `open_at` does."""
        super().__init__(token=token, models=models)
        self.address = ""
        """Where it is served; empty before it is."""
        self._where = (host, port)
        self._names = names
        self._waiting: deque[WaitingRollout] = deque()
        self._came = asyncio.Event()
        self._opening = asyncio.Lock()  # one rollout starts the server, the others wait for it
        self._server: asyncio.Task[None] | None = None
        self._begin: BeginTask | None = None
        self._most_own = 0
        self._own: dict[str, asyncio.Future[WaitingRollout]] = {}
        self._texts = LongTexts()

    async def start(self) -> None:
        """Listen, until the event loop ends; once for all rollouts.

        Raises:
            ConfigError: the port is taken, or other machines could reach it without a token.
        """
        async with self._opening:
            if self._server is not None:
                return
            ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            server = asyncio.create_task(self._serve(ready))
            await asyncio.wait((server, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await server
            self.address = ready.result()
            self._server = server

    async def _serve(self, ready: asyncio.Future[str]) -> None:
        host, port = self._where
        async with listening(self, host=host, port=port, names=self._names) as address:
            ready.set_result(address)
            await asyncio.Event().wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; one that the end of the run interrupts is told so."""
        begun = False

        async def noted(message: dict[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await super().__call__(scope, receive, noted)
        except asyncio.CancelledError:
            # The event loop of the run ends, and cancels what still waits for it.
            if not begun and scope["type"] == "http":
                await send_json(send, 503, {"error": {"message": "this run has ended"}})

    @contextlib.contextmanager
    def taking_tasks(self, begin: BeginTask, *, most: int) -> Iterator[None]:
        """Take tasks that agents bring while the block runs, at most so many at once."""
        self._begin, self._most_own = begin, most
        try:
            yield
        finally:
            self._begin = None

    def publish(self, rollout: WaitingRollout) -> None:
        """Offer a rollout to the next agent that asks, or pass it to the one that brought its task.

        Raises:
            EnvError: the agent that brought the task has had it, and failed.
        """
        caller = self._own.get(rollout.names["group"])
        if caller is not None and caller.done():
            raise EnvError("the agent that brought this task did not play it to its end")
        self.open(rollout.session)
        if caller is not None:
            rollout.taken.set()
            caller.set_result(rollout)
            return
        self._waiting.append(rollout)
        self._came.set()

    def withdraw(self, rollout: WaitingRollout) -> None:
        """Hand a rollout out no longer."""
        if rollout in self._waiting:
            self._waiting.remove(rollout)

    async def other(self, method: str, path: str, raw: bytes, receive: Receive, send: Send) -> bool:
        """Pass a rollout to an agent, or begin one; see `Gateway.other`."""
        asked = path == NEXT
        if method != "POST" or path not in (NEXT, OWN):
            return False
        gone = asyncio.create_task(until_gone(receive))
        try:
            if asked:
                wanted, wait_s = await self._texts.run_alone(len(raw), wanted_rollout, raw)
                found = await self._next(wanted, wait_s, gone)
            else:
                task = await self._texts.run_alone(IMAGE_WORK, own_task, raw)
                found = await self._begun(task, gone)
        finally:
            gone.cancel()
        body = {"object": "session", "session": None} if found is None else self._told(found)
        await send_json(send, 200, body)
        return True

    async def _next(
        self, wanted: str, wait_s: float, gone: asyncio.Task[None]
    ) -> WaitingRollout | None:
        """The first rollout of a task, once there is one; None for an agent that is gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while not gone.done():
            found = next((one for one in self._waiting if wanted in ("", one.task.id)), None)
            if found is not None:
                self._waiting.remove(found)
                found.taken.set()
                return found
            left_s = until - loop.time()
            if left_s <= 0:
                return None
            self._came.clear()
            came = asyncio.create_task(self._came.wait())
            try:
                await asyncio.wait(
                    (came, gone), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                came.cancel()
        return None

    async def _begun(self, task: Task, gone: asyncio.Task[None]) -> WaitingRollout | None:
        """The rollout of a task that an agent brought; None for an agent that is gone.

        Raises:
            RequestRefused: this run takes none, or has as many as it can.
        """
        if self._begin is None:
            raise RequestRefused(
                RefusalReason.BAD_REQUEST,
                "this run takes the tasks of its dataset alone: a group that is trained needs its "
                "task before its first rollout. Start agentrl gateway serve with train.steps=0 to "
                "record rollouts of tasks of your own, or put them into the dataset",
            )
        if len(self._own) >= self._most_own:
            raise RequestRefused(
                RefusalReason.BUSY,
                f"{len(self._own)} rollouts of tasks that agents brought are under way, at most "
                f"{self._most_own} may be; post a reward first",
            )
        caller: asyncio.Future[WaitingRollout] = asyncio.get_running_loop().create_future()
        begun = self._begin(task)
        self._own[begun.group] = caller
        begun.running.add_done_callback(lambda done: self._own.pop(begun.group, None))
        await asyncio.wait(
            (caller, begun.running, gone), timeout=_BEGIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        if caller.done() and not gone.done():
            return caller.result()
        begun.running.cancel()
        if gone.done():
            return None
        raise RequestRefused(RefusalReason.ENGINE, "the rollout of this task could not begin")

    def _told(self, rollout: WaitingRollout) -> dict[str, Any]:
        task, secret = rollout.task, rollout.session.secret
        prompt = task.prompt
        if not isinstance(prompt, str):
            messages = [{"role": one.role, "content": one.content} for one in prompt]
        else:
            messages = [{"role": "user", "content": prompt}]
        return {
            "object": "session",
            "session": secret,
            "base_url": f"{self.address}/s/{secret}/v1",
            "task": {
                "id": task.id,
                "messages": messages,
                "label": task.label,
                "metadata": dict(task.metadata),
            },
            **rollout.names,
        }


def gateway_token(token_env: str = TOKEN_ENV, *, host: str = "127.0.0.1") -> str:
    """The token that agents send for a rollout.

    What the environment variable holds; where none is named and the usual one is not set, one that
    is made once for this process.

    Raises:
        ConfigError: the named variable is not set, or other machines reach `host` and none is.
    """
    token = os.environ.get(token_env, "").strip()
    if token:
        return token
    if token_env != TOKEN_ENV or not is_loopback(host):
        raise ConfigError(
            f"token_env: the environment variable {token_env!r} is not set, and without a token "
            f"the gateway listens at 127.0.0.1 alone, not at {host}; export it"
        )
    return _made_token()


@cache
def _made_token() -> str:
    return secrets.token_urlsafe(24)


_DESKS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], AgentDesk]] = (
    WeakKeyDictionary()
)


class OutsideAgent(SessionAgent):
    """An environment whose rollouts are played by agents that ask for them over HTTP."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = PORT,
        token_env: str = TOKEN_ENV,
        allow_hosts: Sequence[str] = (),
        claim_timeout_s: float = 3600.0,
        models: Sequence[str] = (),
        side_calls: SideCalls = "train",
    ) -> None:
        """Check the arguments; nothing listens before the first rollout.

        Args:
            host: address to listen at; one that other machines reach needs a token that is set.
            port: where to listen.
            token_env: variable that holds the access token, which agents send as
                `x-agentrl-token`; see `gateway_token`.
            allow_hosts: other names by which agents reach the machine, as that of a container.
            claim_timeout_s: seconds after which a rollout that no agent took has failed.
            models: names of the model that requests may have; without any, all of them.
            side_calls: see `GatewaySession`.

        Raises:
            ConfigError: the variable is not set, or the models are no list of names.
        """
        super().__init__(side_calls=side_calls)
        self._token = gateway_token(token_env, host=host)
        self._where = (host, port)
        self._names = tuple(allow_hosts)
        self._claim_timeout_s = claim_timeout_s
        if isinstance(models, str) or not all(isinstance(name, str) and name for name in models):
            raise ConfigError(f"models is {models!r}, expected a list of names, as [policy]")
        self._models = tuple(models)

    def session_loop(self, opened: OpenedRollout) -> RolloutLoop:
        """Make the loop of an open session; see `SessionAgent.session_loop`."""
        return OutsideLoop(
            opened,
            desk=self._desk(),
            rollout_id=self.context.rollout_id,
            claim_timeout_s=self._claim_timeout_s,
        )

    @contextlib.asynccontextmanager
    async def taking_tasks(self, begin: BeginTask, *, most: int) -> AsyncIterator[None]:
        """Listen, and take tasks that agents bring while the block runs.

        Args:
            begin: begins the group of a task.
            most: such groups at once.

        Raises:
            ConfigError: the port is taken, or other machines could reach it without a token.
        """
        desk = self._desk()
        await desk.start()
        with desk.taking_tasks(begin, most=most):
            yield

    def _desk(self) -> AgentDesk:
        desks = _DESKS.setdefault(asyncio.get_running_loop(), {})
        host, port = self._where
        if self._where not in desks:
            desks[self._where] = AgentDesk(
                host=host,
                port=port,
                token=self._token,
                names=self._names,
                models=self._models,
            )
        return desks[self._where]


class OutsideLoop(SessionLoop):
    """One rollout that waits for an agent, and then for its reward."""

    def __init__(
        self, opened: OpenedRollout, *, desk: AgentDesk, rollout_id: str, claim_timeout_s: float
    ) -> None:
        """Wait at `desk`; other arguments as `SessionLoop`."""
        super().__init__(opened)
        self._desk = desk
        self._rollout_id = rollout_id
        self._claim_timeout_s = claim_timeout_s

    async def _played(self, task: Task) -> StepResult:
        """Wait for the agent; its reward is the posted one."""
        session = self._session
        group = self._rollout_id.rpartition("/")[0]
        rollout = WaitingRollout(
            task=task, session=session, names={"rollout": self._rollout_id, "group": group}
        )
        await self._desk.start()
        self._desk.publish(rollout)
        try:
            with self._watch.limit(self._claim_timeout_s):
                await rollout.taken.wait()
        except TimeoutError:
            self._desk.withdraw(rollout)
            await self._desk.close(session)
            raise EnvError(
                f"claim_timeout_s: no agent asked for this rollout within "
                f"{self._claim_timeout_s:g} s; start agents that POST /{NEXT} at "
                f"{self._desk.address}"
            ) from None
        try:
            with self._watch.limit(self._parts.limits.timeout_s):
                await session.rewarded.wait()
        finally:
            self._desk.withdraw(rollout)
            await self._desk.close(session)
        return as_step_result(agreed(session.posted, None))
