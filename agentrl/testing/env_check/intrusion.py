"""Checks of what a model or the loop may do to an environment: run code in it, cancel it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from agentrl.env import Action
from agentrl.testing.env_check.episode import Episode, Failed, Setting
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.values import shown
from agentrl.testing.env_check.watch import Blocked, NoCoroutine
from agentrl.types import Task
from agentrl.types.schema_values import arguments_of

_MARK = "AGENTRL_CHECK_RAN_THIS"
_CODE = f"__import__('os').environ.__setitem__('{_MARK}', '1')"
_TEXTS = (_CODE, f"```python\n{_CODE}\n```", f"<answer>{_CODE}</answer>")
_CANCEL_S = 2.0
"""Time that a cancelled call gets to clean up."""


async def check_code(setting: Setting, task: Task, *, calls: bool) -> None:
    """Write code, also in calls of tools, and see whether it ran in this process."""
    for text in _TEXTS:
        async with AsyncExitStack() as stack:
            with suppress(Failed):
                episode = await Episode.begin(setting, stack, task)
                await episode.step(Action(text=text, raw_text=text))
        _report(setting, f"step ran {shown(text)}")
    if not calls:
        return
    async with AsyncExitStack() as stack:
        with suppress(Failed):
            episode = await Episode.begin(setting, stack, task)
            for tool in episode.tools:
                for name, entry in (tool.parameters.get("properties") or {}).items():
                    if isinstance(entry, dict) and entry.get("type") == "string":
                        given = arguments_of(tool.parameters)[0] | {name: _CODE}
                        await episode.call_tool(tool, given)
                        _report(setting, f"the tool {tool.name} ran {shown(_CODE)}")


def _report(setting: Setting, what: str) -> None:
    if os.environ.pop(_MARK, None) is not None:
        setting.add(broken("E211", f"{what} in the process of the rollouts"))


async def check_cancelled(setting: Setting, task: Task) -> None:
    """Cancel `reset` and `step` while they wait, as a limit of time does."""
    async with AsyncExitStack() as stack:
        with suppress(Failed):
            episode = await Episode.begin(setting, stack, task)
            action = Action(text="I do not know.", raw_text="I do not know.")
            await _cancel(setting, "step", episode.stepping(action))
    async with AsyncExitStack() as stack:
        with suppress(Failed):
            episode = await Episode.begin(setting, stack, task)
            await _cancel(setting, "reset", lambda: episode.env.reset(setting.fresh(task)))


async def _cancel(setting: Setting, what: str, start: Callable[[], Any]) -> None:
    limit_s = setting.limits.step_s
    work = asyncio.ensure_future(setting.watch.guard(start, limit_s=limit_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if work.done():
        with suppress(Exception, Blocked, NoCoroutine):  # other phases have looked at it
            work.result()
        return
    work.cancel()
    done, _ = await asyncio.wait({work}, timeout=_CANCEL_S)
    if not done:
        setting.add(broken("E210", f"{what} went on for {_CANCEL_S:g} s after it was cancelled"))
        work.cancel()
    elif not work.cancelled() and work.exception() is None:
        setting.add(broken("E210", f"{what} was cancelled and returned {shown(work.result())}"))
