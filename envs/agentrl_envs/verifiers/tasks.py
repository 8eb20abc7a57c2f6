"""Tasksets of verifiers as tasks, and why some of them cannot be played here."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.types import Message, Task


def taskset_tasks(
    taskset: str,
    config: Mapping[str, Any] | None = None,
    n: int | None = None,
    skip: int = 0,
    split: str = "train",
) -> list[Task]:
    """Tasks of an installed taskset.

    Args:
        taskset: the id under which verifiers knows it, or `module:Class`.
        config: fields of its `TasksetConfig`.
        n: how many; None takes all there are.
        skip: tasks to leave out first; the way to splits, where the taskset has none.
        split: what the tasks are said to belong to.

    Raises:
        ConfigError: verifiers or the taskset is not there, or it needs what this has not:
            containers, tool servers, several agents or hooks into the conversation.
        DataError: a task without a prompt in words.
    """
    if (n is not None and n < 1) or skip < 0:
        raise ConfigError(f"taskset_tasks: n must be at least 1, skip at least 0; got {n}, {skip}")
    made = _loaded(taskset, dict(config or {}))
    if n is None and not made.bounded:
        raise ConfigError(f"taskset_tasks: {taskset!r} has no end; say how many with args.n")
    stop = None if n is None else skip + n
    tasks = [_task(taskset, task, split) for task in islice(made, skip, stop)]
    if not tasks:
        raise DataError(f"taskset_tasks: {taskset!r} has no task after the first {skip}")
    return tasks


def _loaded(taskset: str, config: dict[str, Any]) -> Any:
    try:
        vf = importlib.import_module("verifiers.v1")
        generic = importlib.import_module("verifiers.v1.utils.generic")
        base = vf.Taskset
    except ImportError as error:
        raise ConfigError(
            f"agentrl_envs.verifiers needs the package 'verifiers' 0.4 ({error}); install it with "
            "pip install 'verifiers>=0.4,<0.5'"
        ) from error
    module, _, name = taskset.partition(":")
    try:
        if name:
            kind = getattr(importlib.import_module(module), name)
        else:
            loaders = importlib.import_module("verifiers.v1.utils.loaders")
            kind = loaders.taskset_class(taskset)
            # A package may bring an environment with several agents, which are not here.
            if loaders.environment_class(taskset) is not vf.SingleAgentEnv:
                raise _unplayable(taskset, "an environment of its own")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"taskset_tasks: cannot load {taskset!r}: {error}; give the id of an installed "
            "taskset, or module:Class"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ConfigError(f"taskset_tasks: {taskset!r} is no verifiers.v1.Taskset")
    settings: Any = generic.concrete_type(kind, vf.TasksetConfig, origin=base) or vf.TasksetConfig
    try:
        made = kind(settings(**{"id": taskset, **config}))
    except Exception as error:  # constructors of third parties raise anything; their boundary
        raise ConfigError(
            f"taskset_tasks: {taskset!r} does not take args.config {config}: {error}"
        ) from error
    if kind.toolsets(made.config):
        raise _unplayable(taskset, "tool servers")
    return made


def _task(taskset: str, task: Any, split: str) -> Task:
    for why in _needs(task):
        raise _unplayable(taskset, why)
    data = task.data.model_dump(mode="json")
    kind = type(task)
    config = task.config.model_dump(mode="json")
    try:
        again = kind.data_type()(**data) == task.data and kind.config_type()(**config)
    except Exception as error:  # validators of third parties raise anything; their boundary
        raise _unplayable(taskset, f"data that is no JSON ({error})") from error
    if not again:
        raise _unplayable(taskset, "data that does not survive JSON")
    prompt = _prompt(taskset, task.data)
    return Task(
        id=f"{taskset}/{task.key}",
        prompt=prompt,
        label={
            "task_class": f"{kind.__module__}:{kind.__qualname__}",
            "config": config,
            "data": data,
        },
        metadata={"taskset": taskset, "idx": task.data.idx},
        split=split,
    )


def _needs(task: Any) -> Iterable[str]:
    """The name of something that a task needs and that is not here."""
    vf = importlib.import_module("verifiers.v1")
    decorators = importlib.import_module("verifiers.v1.utils.decorators")
    hooks: list[Callable[..., Any]] = [*task.hooks("reward"), *task.hooks("metric")]
    if task.NEEDS_CONTAINER or task.data.image or task.data.skills or task.data.artifacts:
        yield "a container"
    if any(_takes_runtime(hook) for hook in hooks):
        yield "a runtime in its rewards"
    for name in ("setup", "finalize"):
        own = getattr(type(task), name) is not getattr(vf.Task, name)
        if own and _takes_runtime(getattr(task, name)):
            yield f"a runtime in its {name}"
    if task.toolsets(task.config):
        yield "tool servers"
    if task.hooks("stop") or list(decorators.discover_decorated(task, "intercept")):
        yield "hooks into the conversation"
    if type(task).__init__ is not vf.Task.__init__ or "<locals>" in type(task).__qualname__:
        yield "a constructor of its own, or a class inside a function"
    if not task.hooks("reward") and not task.plugged_judges():
        yield "a reward from elsewhere, as it has none"


def _takes_runtime(hook: Callable[..., Any]) -> bool:
    given = inspect.signature(hook).parameters.get("runtime")
    return given is not None and given.default is inspect.Parameter.empty


def _prompt(taskset: str, data: Any) -> str | tuple[Message, ...]:
    said: Any = data.prompt
    if isinstance(said, str) and not data.system_prompt:
        return said
    messages = [Message(role="system", content=data.system_prompt)] if data.system_prompt else []
    if isinstance(said, str):
        return (*messages, Message(role="user", content=said))
    for message in said or ():
        parts: Any = message.content
        if not isinstance(parts, str) and any(part.type != "text" for part in parts or ()):
            raise DataError(f"{taskset!r}, task {data.idx}: the prompt has parts that are no text")
        if message.role == "tool" or getattr(message, "tool_calls", None):
            raise DataError(f"{taskset!r}, task {data.idx}: the prompt has tool calls in it")
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts or ())
        messages.append(Message(role=message.role, content=text))
    if not messages or messages[-1].role != "user":
        raise DataError(
            f"{taskset!r}, task {data.idx}: the prompt is {said!r:.100}, expected one that ends "
            "with words of the user"
        )
    return tuple(messages)


def _unplayable(taskset: str, why: str) -> ConfigError:
    return ConfigError(
        f"taskset_tasks: {taskset!r} needs {why}. Only tasks that are a prompt, and rewards of the "
        "conversation alone, can be played here"
    )
