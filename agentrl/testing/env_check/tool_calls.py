"""Calls of the tools of an environment: well-formed ones by their schema, and wrong ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from agentrl.env import Action
from agentrl.testing.env_check.episode import Episode, Failed, Setting
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.script import EpisodeScript, call_of
from agentrl.testing.env_check.values import shown
from agentrl.tool import Tool
from agentrl.types import Task
from agentrl.types.schema_values import arguments_of

_TOOLS = 8
"""Tools that are called, from the front."""
_OBJECT_AT = re.compile(r"<[\w.<> ]+ at 0x[0-9a-f]+>")


def scripts_of_calls(task: int, tools: Sequence[Tool]) -> list[EpisodeScript]:
    """One script for each tool: its well-formed calls one after another, then an answer."""
    scripts: list[EpisodeScript] = []
    for tool in tools[:_TOOLS]:
        calls = [call_of(tool.name, given) for given in arguments_of(tool.parameters)]
        scripts.append(EpisodeScript(task=task, turns=(*calls, "I do not know."), kind="calls"))
    return scripts


def _wrong(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Arguments as models get them wrong: none, of other kinds, and one that there is not."""
    names = list(schema.get("properties") or {})
    right = arguments_of(schema)[0]
    others: tuple[Any, ...] = (None, {"a": [1]}, "not a number", 10**30)
    return [{}, *({name: other for name in names} for other in others), {**right, "no_such": 1}]


async def check_tools(setting: Setting, task: Task) -> None:
    """Call each tool rightly and wrongly: it answers with text or a `ToolError`, whatever it gets.

    Also steps with several calls in one turn.
    """
    names: list[str] = []
    try:
        async with AsyncExitStack() as stack:
            names = [t.name for t in (await Episode.begin(setting, stack, task)).tools][:_TOOLS]
    except Failed:
        return
    for name in names:
        async with AsyncExitStack() as stack:
            try:
                episode = await Episode.begin(setting, stack, task)
                await _check_tool(setting, episode, episode.tool(name))
            except Failed:
                continue


async def _check_tool(setting: Setting, episode: Episode, tool: Tool) -> None:
    right = arguments_of(tool.parameters)
    results = [await episode.call_tool(tool, given) for given in right]
    if all(result.text == "None" for result in results):
        message = f"every call of {tool.name} returned 'None', so the model reads nothing of it"
        setting.add(broken("E603", message))
    for given, result in zip(right, results, strict=True):
        if found := _OBJECT_AT.search(result.text):
            message = f"the call {tool.name}({shown(given)}) returned {found[0]!r}"
            setting.add(broken("E603", message))
    if not episode.done:
        calls = tuple(call_of(tool.name, given) for given in right)
        action = Action(text="", tool_calls=calls, tool_results=tuple(results))
        await episode.step(action, code="E601")
    for given in _wrong(tool.parameters):
        await episode.call_tool(tool, given, code="E602")
