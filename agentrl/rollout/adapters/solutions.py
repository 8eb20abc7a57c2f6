"""The solution of a task, wherever the author of an environment defined it."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from agentrl.env import AgentInstance, Solution, turns_of
from agentrl.errors import EnvError
from agentrl.plugins.user_code import hangs_in, user_call
from agentrl.types import Task

SOLUTION_S = 60.0
"""Seconds that one solution may take: more than a rollout gives to a step, as none waits for it."""


async def solution_of(env: AgentInstance, task: Task) -> Solution | None:
    """A checked solution; None where none is known.

    It is what `solution(task)` gives, a method of the class, also of one of other make, or a
    function of its module; either may be a coroutine function.

    Raises:
        EnvError: it gave what is no solution, or nothing within `SOLUTION_S`.
        Exception: whatever the user's code raises.
    """
    try:
        async with asyncio.timeout(SOLUTION_S) as limit:
            return await user_call(_asked, env, task, limit_s=SOLUTION_S)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise EnvError(f"gave nothing within {SOLUTION_S:g} s{hangs_in(error)}") from None


async def _asked(env: AgentInstance, task: Task) -> Solution | None:
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
