"""Finds out if an environment judges its rollouts with a score, before one of them has ended."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from agentrl.env import AgentInstance
from agentrl.rollout.adapters.adapt import DictEnv
from agentrl.rollout.own_loop import OwnLoop

_NAME = "scores"


def declares_scores(env: AgentInstance) -> bool:
    """True if the code of an environment names `StepResult.scores`.

    That is all there is to know where every rollout of a group was cut off before its end. Read are
    the functions of its class and those of its modules that these call; a loop of its own gives its
    reward at the end, so nothing of it is cut off.
    """
    if isinstance(env, OwnLoop):
        return False
    return _names_scores(env.kind if isinstance(env, DictEnv) else type(env))


@cache
def _names_scores(cls: type) -> bool:
    seen: set[Any] = set()
    defined = [(name, v) for base in reversed(cls.__mro__) for name, v in vars(base).items()]
    waiting = list(dict(defined).values())  # what a subclass overrides is called by `super` alone
    while waiting:
        value = waiting.pop()
        # Of anything else no attribute is asked, `__class__` neither: it may be a lazy import.
        wrapped = issubclass(type(value), (staticmethod, classmethod, MethodType))
        function: Any = value.__func__ if wrapped else value
        if type(function) is not FunctionType or function in seen or not _is_theirs(function):
            continue
        seen.add(function)
        for code in _codes(function.__code__):
            # Names of keyword arguments stand in tuples.
            if any(_NAME in (word if type(word) is tuple else (word,)) for word in code.co_consts):
                return True
            waiting += [function.__globals__.get(name) for name in code.co_names]
            if "super" in code.co_names:
                waiting += [value for name, value in defined if name == function.__name__]
    return False


def _is_theirs(found: Any) -> bool:
    return str(found.__module__).partition(".")[0] not in ("agentrl", "builtins")


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
