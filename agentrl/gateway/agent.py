"""Agents that are one function: `async def agent(task, client) -> reward`, or `def` in a thread.

The function is an environment like any other (`env.target`). Its client is bound to a session of
its rollout, so that whatever it asks the model for becomes the rows of that rollout.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentrl.env import AgentInstance, ProgramEnv
from agentrl.errors import ConfigError
from agentrl.gateway.agent_loop import AgentLoop
from agentrl.gateway.clients import ClientKind
from agentrl.gateway.opened import OpenedRollout, SessionAgent
from agentrl.gateway.program import ProgramAgent
from agentrl.gateway.side_model import SideCalls
from agentrl.plugins.imports import resolve
from agentrl.plugins.own_threads import OwnThread
from agentrl.rollout.adapters.adapt import is_agent, load_env_class
from agentrl.rollout.own_loop import RolloutLoop
from agentrl.types import Task

AgentFunction = Callable[..., Any]
"""`async def agent(task, client, **args)`; a parameter called `context` gets the `EnvContext`. One
without `async` runs in a thread."""


def load_env(target: str, *, side_calls: SideCalls, base: Path | None = None) -> Callable[..., Any]:
    """A factory of environments for `env.target`: a class, or the function of an agent.

    A `ProgramEnv` comes with what plays it.

    Raises:
        ConfigError: it cannot be loaded or is neither.
    """
    if (found := _agent_function(target, base)) is None:
        loaded = load_env_class(target, base=base)
        if not (inspect.isclass(loaded) and issubclass(loaded, ProgramEnv)):
            return loaded

        @functools.wraps(loaded)
        def play(*args: Any, **named: Any) -> AgentInstance:
            return ProgramAgent(loaded(*args, **named), side_calls=side_calls)

        return play

    def make(**args: Any) -> AgentInstance:
        return FunctionAgent(found, args, side_calls=side_calls)

    return make


def _agent_function(target: str, base: Path | None) -> AgentFunction | None:
    """The function of an agent that an import string names; None if it names something else."""
    if not target.rpartition(":")[0]:
        return None  # refused with the other wrong import strings
    try:
        found = resolve(target, base=base)
    except ConfigError:
        return None  # the loader of classes knows files that cannot be imported as they are
    return found if is_agent(found) else None


class FunctionAgent(SessionAgent):
    """Runs one rollout of an agent that is a function."""

    def __init__(
        self,
        function: AgentFunction,
        args: Mapping[str, Any],
        *,
        side_calls: SideCalls = "train",
        client: ClientKind | None = None,
    ) -> None:
        """Check that the function can be called.

        Args:
            function: takes the task and a client, by position.
            args: more arguments, by name.
            side_calls: see `GatewaySession`.
            client: kind of the client; None goes by the type of the function's second parameter.

        Raises:
            ConfigError: its parameters do not fit.
        """
        super().__init__(side_calls=side_calls)
        self._function = function
        self._args = dict(args)
        signature = inspect.signature(function)
        self._wants_context = "context" in signature.parameters and "context" not in args
        given = {"context": None} if self._wants_context else {}
        try:
            signature.bind(None, None, **self._args, **given)
        except TypeError as error:
            raise ConfigError(
                f"the agent {function.__name__}{signature} cannot be called with a task, a client "
                f"and the env.args {sorted(self._args)}: {error}"
            ) from None
        self._client: ClientKind = client or _kind_of_client(signature)
        self._threaded = not inspect.iscoroutinefunction(function)

    def session_loop(self, opened: OpenedRollout) -> RolloutLoop:
        """Make the loop of an open session; see `SessionAgent.session_loop`."""
        return AgentLoop(opened, agent=self._called, client=self._client, threaded=self._threaded)

    async def _called(self, task: Task, client: Any) -> Any:
        given = {"context": self.context} if self._wants_context else {}
        if self._threaded:
            thread = OwnThread(computes=False)  # ends at its next request, which is refused
            try:
                return await thread.call(self._function, task, client, **self._args, **given)
            finally:
                thread.close()
        return await self._function(task, client, **self._args, **given)


def _kind_of_client(signature: inspect.Signature) -> ClientKind:
    """The SDK that the type of the second parameter belongs to; OpenAI's without one."""
    second = list(signature.parameters.values())[1]
    return "anthropic" if "Anthropic" in str(second.annotation) else "openai"
