"""The solution of a task, wherever the author of an environment defined it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from agentrl.env import AgentInstance, Solution, turns_of
from agentrl.types import Task


async def solution_of(env: AgentInstance, task: Task) -> Solution | None:
    """A checked solution; None where none is known.

    It is what `solution(task)` gives, a method of the class, also of one of other make, or a
    function of its module; either may be a coroutine function.

    Raises:
        EnvError: it gave what is no solution.
        Exception: whatever the user's code raises.
    """
    for give in _givers(env):
        found = give(task)
        if inspect.isawaitable(found):
            found = await found
        if found is not None and turns_of(found) is not None:
            return found
    return None


def _givers(env: AgentInstance) -> Iterator[Callable[[Task], Any]]:
    yield env.solution
    kind = getattr(env, "kind", type(env))
    function = getattr(sys.modules.get(kind.__module__), "solution", None)
    if inspect.isfunction(function):
        yield function
