"""The solution that an environment knows, played against itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from agentrl.env import Action, EnvContext, ProgramEnv, turns_of
from agentrl.errors import ToolError
from agentrl.plugins.user_code import user_code
from agentrl.testing.env_check.episode import Episode, Failed, Setting, call, close
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.values import shown
from agentrl.tool import Tool
from agentrl.types import Task, ToolCall, ToolResult, ToolStatus
from agentrl.types.solved import is_solved


async def check_solution(setting: Setting, tasks: Sequence[Task]) -> None:
    """Ask for the solution of each task, and play it: calls with the tools that are offered.

    One that is played to its end has to have the score 1, where the environment gives scores.
    """
    for task in tasks:
        try:
            turns = await _turns(setting, task)
            if turns is None:
                continue
            async with AsyncExitStack() as stack:
                episode = await Episode.begin(setting, stack, task)
                if isinstance(episode.env, ProgramEnv):
                    return  # its turns are asked for by a program
                wrong = await _play(setting, episode, turns)
        except Failed:
            return
        if wrong:
            setting.add(broken("E502", f"the solution of task {task.id!r} {wrong}"))
            return


async def _turns(setting: Setting, task: Task) -> Sequence[str | ToolCall] | None:
    env = setting.make_env()
    env.context = EnvContext(seed=setting.seed, tools=tuple(setting.tools))
    try:
        with user_code():
            return turns_of(env.solution(task))
    except Exception as error:  # an environment may raise anything: recorded as a finding
        message = f"on task {task.id!r} solution raised {type(error).__name__}: {error}"
        setting.add(broken("E501", message))
        raise Failed from None
    finally:
        await close(setting, env, "after solution")


async def _play(setting: Setting, episode: Episode, turns: Sequence[str | ToolCall]) -> str:
    """What is wrong with a solution; empty if it solves its task."""
    tools = {tool.name: tool.fresh() for tool in (*setting.tools, *episode.tools)}
    limit = setting.limits.max_steps
    for turn in range(limit):
        said = turns[min(turn, len(turns) - 1)] if turns else ""
        if isinstance(said, str):
            action = Action(text=said, raw_text=said)
        elif said.name not in tools:
            return f"calls {said.name!r}, which is not offered; name its tool with --tool"
        else:
            text = json.dumps({"name": said.name, "arguments": dict(said.arguments)})
            result = await _result(setting, episode, tools[said.name], said)
            action = Action(text=text, raw_text=text, tool_calls=(said,), tool_results=(result,))
        await episode.step(replace(action, turn=turn, last=turn == limit - 1))
        if episode.done:
            score = episode.score
            return "" if score is None or is_solved(score) else f"has the score {score:g}"
    return f"is not done after {limit} steps"


async def _result(setting: Setting, episode: Episode, tool: Tool, said: ToolCall) -> ToolResult:
    async def run() -> ToolResult:
        sandbox = await episode.env.context.open_sandbox() if tool.needs_sandbox else None
        try:
            return await tool.call(tool.validate(said.arguments), sandbox)
        except ToolError as error:
            return ToolResult(text=str(error), status=ToolStatus.ERROR)

    return await call(setting, "E501", f"the tool call {shown(said.arguments)} of solution", run)
