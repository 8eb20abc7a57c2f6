"""Environments of other make, behind the contract of `AgentInstance`.

An agent file written for OpenRLHF has a class with `async reset(states)` and `async step(states)`
that take and return dictionaries, splice raw text and know nothing of templates or tools.
`load_env_class` loads such a file although OpenRLHF is not installed, and `adapt_env` lets its
instances run unchanged. Classes for SkyRL-gym and verl are wrapped in `text_envs`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from agentrl.env import Action, AgentInstance, Observation, StepResult
from agentrl.errors import ConfigError, EnvError
from agentrl.plugins.imports import resolve
from agentrl.rollout.adapters.one_place import OnePlace
from agentrl.rollout.adapters.text_envs import text_env_of
from agentrl.rollout.coerce import SAMPLING_KEYS, as_observation, as_step_result
from agentrl.types import Message, Task


def adapt_env(obj: Any) -> AgentInstance:
    """An environment as the loop wants it.

    Args:
        obj: an `AgentInstance` (returned as it is), or any object with `reset` and `step` that
            take and return OpenRLHF's dictionaries.

    Raises:
        EnvError: it is neither.
    """
    if isinstance(obj, AgentInstance):
        return obj
    for name in ("reset", "step"):
        if not callable(getattr(obj, name, None)):
            raise EnvError(
                f"{type(obj).__name__} is not an environment: it has no method {name!r}; expected "
                "a subclass of AgentInstance, or an object with 'reset' and 'step'"
            )
    return DictEnv(obj)


def load_env_class(target: str, *, base: Path | None = None) -> Callable[..., AgentInstance]:
    """The environment class an import string names, as a factory of `AgentInstance`.

    Args:
        target: a subclass of `AgentInstance`, a class with OpenRLHF's `reset` and `step`, that
            file's `AgentExecutor`, an environment of SkyRL-gym, an interaction of verl, or a
            function that makes environments.
        base: folder that relative file paths start from.

    Raises:
        ConfigError: the target cannot be loaded or is none of these.
    """
    found = resolve(target, base=base)
    if inspect.isclass(found):
        found = _agent_of_executor(target, found)
        if issubclass(found, AgentInstance):
            return found
        missing = [n for n in ("reset", "step") if not callable(getattr(found, n, None))]
        if missing and (wrapped := text_env_of(found)):
            return wrapped
        if missing:
            raise ConfigError(
                f"env.target {target!r} names the class {found.__name__}, which has no method "
                f"{missing[0]!r}; expected a subclass of AgentInstance, or a class with 'reset' "
                "and 'step' (OpenRLHF), 'init' and 'step' (SkyRL-gym), or 'start_interaction' and "
                "'generate_response' (verl)"
            )
        return partial(make_dict_env, found)
    if not callable(found):
        raise ConfigError(
            f"env.target {target!r} names a {type(found).__name__}, expected an environment class"
        )
    if is_agent(found):
        raise ConfigError(
            f"env.target {target!r} names {found.__name__}, an agent (a function of task and "
            "client); it drives its rollout itself, so it can be trained and evaluated, but not be "
            "checked or attacked as an environment"
        )
    return _FromFunction(found)


class _FromFunction:
    """A factory that calls a function of the user, where the environment lives that it makes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._kind: type | None = None
        """Class of what it makes, where that lives in a thread of its own."""

    def __call__(self, **args: Any) -> AgentInstance:
        make = partial(self._function, **args)
        if self._kind is not None:
            return DictEnv(self._kind, make=make)
        made = adapt_env(make())
        if not isinstance(made, DictEnv) or made.in_loop:
            return made
        self._kind = made.kind  # this one was made in the present thread, and is none that is used
        return DictEnv(self._kind, make=make, tried=True)


def is_agent(value: Any) -> bool:
    """True for the function of an agent: a coroutine function, or one of `task` and `client`."""
    if inspect.iscoroutinefunction(value):
        return True
    return inspect.isfunction(value) and [*inspect.signature(value).parameters][:2] == [
        "task",
        "client",
    ]


class DictEnv(AgentInstance):
    """Runs an environment with OpenRLHF's interface.

    Its texts are spliced raw: the first observation is the prompt as the model's template renders
    it (unless the environment changes it), and feedback is appended as it is.

    All of it runs in one thread: in the event loop's where `reset` and `step` are coroutine
    functions, else in a thread of its own.
    """

    wants_observation_text = True

    def __init__(
        self, inner: Any, *, make: Callable[[], Any] | None = None, tried: bool = False
    ) -> None:
        """Wrap `inner`, an environment, or with `make` a class, whose object that gives later.

        With `tried` it is known that it gives one.
        """
        self.kind: type = inner if make is not None else type(inner)
        """Class of the environment that it wraps."""
        self._inner = inner
        self._make, self._tried = make, tried
        self._place = _place_of(self.kind)
        self._called = self._place.call
        self._label: Any = None
        self._sampling = SimpleNamespace()

    def try_constructor(self) -> None:
        """Construct it now, in the present thread, for its errors alone."""
        late = self._make is not None and not self.in_loop and not self._tried
        if late and self._make is not None and not inspect.iscoroutinefunction(self._make):
            self._make()

    @property
    def in_loop(self) -> bool:
        """True if it runs in the event loop."""
        return self._place.in_loop

    async def reset(self, task: Task) -> Observation:
        """Give it the rendered prompt, take its first observation."""
        if self._make is not None:
            make, self._make = self._make, None
            self._inner = await self._called(make)
            if not callable(getattr(self._inner, "reset", None)):
                raise EnvError(f"{self.kind.__name__} was expected, got {self._inner!r:.200}")
        prompt = task.prompt
        if isinstance(prompt, str):
            prompt = (Message(role="user", content=prompt),)
        text = self.context.render(prompt)
        self._label = task.label
        base = self.context.sampling
        self._sampling = SimpleNamespace(
            temperature=base.temperature,
            top_p=base.top_p,
            max_tokens=base.max_tokens,
            stop_token_ids=list(base.stop_token_ids),
            n=1,
            logprobs=1,
        )
        states = {
            "observation": text,
            "prompt": text,
            "label": task.label,
            "metadata": dict(task.metadata),
        }
        extra = {"seed": self.context.seed} if _accepts_seed(self._inner.reset) else {}
        observation = as_observation(await self._called(self._inner.reset, states, **extra))
        if not isinstance(observation.content, str):
            raise EnvError("reset: 'observation' must be text in an environment of dictionaries")
        return Observation(content=observation.content, raw=True)

    async def step(self, action: Action) -> StepResult:
        """Hand over the texts, take the dictionary."""
        states = {
            "observation_text": action.observation_text,
            "action_text": action.raw_text,
            "label": self._label,
            "sampling_params": self._sampling,
        }
        value = await self._called(self._inner.step, states)
        if not isinstance(value, Mapping):
            return as_step_result(value)
        return as_step_result({**value, "sampling_params": self._overrides(value)})

    def solution(self, task: Task) -> Any:
        """Ask it too, if it knows one."""
        late = self._make is not None
        if not callable(getattr(self.kind, "solution", None)) or (
            late and inspect.iscoroutinefunction(self._make)
        ):
            return None
        inner = self._make() if self._make is not None else self._inner
        return inner.solution(task)

    async def close(self) -> None:
        """Close it too, if it can be closed."""
        close = getattr(self._inner, "close", None)
        if callable(close) and self._inner is not self.kind:
            await self._called(close)
        self._place.close()

    def _overrides(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """What differs from how turns are sampled anyway; the object handed out counts too."""
        given = value.get("sampling_params")
        if given is not None:
            self._sampling = given
        source = self._sampling
        read = source.get if isinstance(source, Mapping) else lambda key: getattr(source, key, None)
        base = self.context.sampling
        chosen = {key: read(key) for key in SAMPLING_KEYS}
        return {k: v for k, v in chosen.items() if v is not None and v != getattr(base, k)}


def make_dict_env(cls: type, **args: Any) -> DictEnv:
    """A fresh environment of dictionaries; `cls` may have an `async def __init__`.

    OpenRLHF's own examples write one, which its Ray actors await and plain Python refuses. It runs
    at the beginning of `reset`, as the constructor of a class that has a thread of its own does.

    Raises:
        TypeError: the arguments do not fit.
    """
    if not inspect.iscoroutinefunction(cls.__init__):
        make = partial(cls, **args)
        return DictEnv(make()) if _place_of(cls).in_loop else DictEnv(cls, make=make)
    instance: Any = object.__new__(cls)
    begin = cast("Callable[..., Any]", cls.__init__)
    inspect.signature(begin).bind(instance, **args)

    async def finish() -> Any:
        await begin(instance, **args)
        return instance

    return DictEnv(cls, make=finish)


def _place_of(cls: type) -> OnePlace:
    return OnePlace(cls, ("reset", "step"))


def _accepts_seed(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is p.VAR_KEYWORD or p.name == "seed" for p in parameters)


def _agent_of_executor(target: str, cls: type) -> type:
    """The environment class behind an executor class; any other class is returned as it is."""
    if not any(base.__name__ == "AgentExecutorBase" for base in cls.__mro__):
        return cls
    owner = next(base for base in cls.__mro__ if "execute" in vars(base) or base is object)
    if owner is not object and not owner.__module__.startswith("openrlhf."):
        raise ConfigError(
            f"env.target {target!r}: {cls.__name__} has its own 'execute', a loop that cannot be "
            "run here; name the environment class of the file instead"
        )
    # An executor says in its constructor which environment it drives; where the constructor wants
    # arguments, the file's `AgentInstance` is meant.
    module = sys.modules[cls.__module__]
    agent = getattr(module, "AgentInstance", None)
    if not any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in _init(cls)):
        agent = getattr(cls(), "agent_instance_cls", None) or agent
    if not inspect.isclass(agent):
        raise ConfigError(
            f"env.target {target!r}: {cls.__name__} does not say which environment it drives; "
            "name the environment class of the file instead"
        )
    return agent


def _init(cls: type) -> list[inspect.Parameter]:
    return list(inspect.signature(cls.__init__).parameters.values())[1:]
