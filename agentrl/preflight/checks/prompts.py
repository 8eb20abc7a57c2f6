"""Checks of what a model is shown first: how long prompts are, and whether they hold answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.config.plan import RolloutPlan
from agentrl.config.schema import RolloutSection
from agentrl.env import EnvContext, asked
from agentrl.errors import RunError
from agentrl.preflight.checks.facts import PreflightFacts, not_checked
from agentrl.preflight.reward.known_answers import SOLVED, AnswerKind, find_solutions, label_text
from agentrl.preflight.reward.leaks import (
    AnswerLeak,
    ShownText,
    answer_texts,
    find_leak,
    leak_finding,
)
from agentrl.preflight.reward.spellings import normal, plain_pattern
from agentrl.rollout import adapt_env
from agentrl.rollout.sandbox import SharedSandbox
from agentrl.runtime.assembly.parts import open_sandboxes, sandbox_limits
from agentrl.runtime.assembly.tools import open_tools
from agentrl.tool import Tool
from agentrl.types import Message, Task
from agentrl.types.finding import Finding, warn

_SAMPLE = 32
"""Tasks whose prompts are measured."""
SAMPLE_S = 120.0
"""Seconds after which no further one is begun."""


async def prompts(plan: RolloutPlan, found: PreflightFacts) -> Finding | str:
    """Reset the environment on a sample of tasks and measure what the model would see."""
    chat, sets, make_env = found.chat, found.tasks, found.make_env
    if chat is None or sets is None or make_env is None:
        return not_checked("prompts", found)
    tasks = sets.train
    stride = max(1, len(tasks) // _SAMPLE)
    lengths: dict[str, int] = {}
    began = time.monotonic()
    sandboxes = await open_sandboxes(plan.sandbox, base=plan.base)
    limits, timeout_s = sandbox_limits(plan.sandbox.limits), plan.rollout.env_timeout_s
    try:
        async with open_tools(plan.env, base=plan.base) as tools:
            for task in list(tasks)[::stride][:_SAMPLE]:
                if lengths and time.monotonic() - began > SAMPLE_S:
                    break
                env = adapt_env(make_env())
                sandbox = SharedSandbox(sandboxes, limits, open_timeout_s=timeout_s)
                env.context = EnvContext(
                    tools=tools,
                    open_sandbox=sandbox.open,
                    new_sandbox=sandbox.fresh,
                    render=lambda messages: chat.render_text(messages),
                    args=plan.env.args,
                )
                try:
                    lengths[task.id] = await _prompt_length(
                        chat, env, task, tools, timeout_s, found
                    )
                finally:
                    await asked(env.close)
                    await sandbox.close()
    finally:
        await sandboxes.close()
    return _judge_lengths(plan.rollout, lengths)


async def _prompt_length(
    chat: ChatFormat,
    env: Any,
    task: Task,
    tools: Sequence[Tool],
    timeout_s: float,
    found: PreflightFacts,
) -> int:
    try:
        async with asyncio.timeout(timeout_s):
            observation = await asked(env.reset, task)
    except TimeoutError:
        raise RunError(f"env.reset took longer than {timeout_s:g} s on task {task.id!r}") from None
    except Exception as error:  # any environment may raise anything; name it and the task
        raise RunError(
            f"env.reset raised on task {task.id!r}: {type(error).__name__}: {error}"
        ) from error
    content = observation.content
    if observation.raw:
        found.shown[task.id] = [ShownText(place="prompt", text=str(content))]
        return len(chat.raw_prompt(content))
    messages = (Message(role="user", content=content),) if isinstance(content, str) else content
    found.shown[task.id] = shown_texts(messages, observation.tools)
    found.tools |= {tool.name: tool for tool in (*tools, *observation.tools)}
    return len(chat.render_prompt(messages, (*tools, *observation.tools)))


def _judge_lengths(section: RolloutSection, lengths: dict[str, int]) -> Finding | str:
    longest = max(lengths, key=lambda task: lengths[task])
    text = (
        f"{len(lengths)} sampled, {min(lengths.values())} to {lengths[longest]} tokens; context "
        f"{section.max_context_tokens}, response {section.max_response_tokens}"
    )
    if lengths[longest] >= section.max_context_tokens:
        raise RunError(
            f"the prompt of task {longest!r} has {lengths[longest]} tokens, which leaves no room "
            f"in rollout.max_context_tokens ({section.max_context_tokens}); raise it"
        )
    if lengths[longest] + section.max_response_tokens > section.max_context_tokens:
        least = lengths[longest] + section.max_response_tokens
        return warn(
            "prompts",
            f"{text}: long prompts will not have their whole response budget",
            f"set rollout.max_context_tokens: {least}",
        )
    return text


async def leak_of_prompts(found: PreflightFacts) -> AnswerLeak | None:
    """The answers that stand in the sampled prompts, by what the reward test has found out.

    Raises:
        RunError: `solution` of the environment raised.
    """
    if found.tasks is None or found.make_env is None:
        return None
    tasks = [task for task in found.tasks.train if task.id in found.shown]
    solutions = await find_solutions(found.make_env, tasks, tuple(found.tools.values()))
    answers = {task.id: answer_texts(task, solutions.get(task.id)) for task in tasks}
    earned = [answer for answer in found.answers if (answer.reward or 0.0) > 0]
    labels = {task.id: label_text(task) for task in found.tasks.train}
    paid = any(
        (answer.kind == AnswerKind.LABEL and (answer.score or 0.0) >= SOLVED)
        or (answer.kind == AnswerKind.SOLUTION and _says(answer.text, labels.get(answer.task_id)))
        for answer in earned
    )
    return find_leak(found.shown, answers, paid=paid)


async def leak(found: PreflightFacts) -> Finding | str:
    """Report whether prompts hold the answers."""
    if found.tasks is None or not found.shown:
        return not_checked("leak", found)
    tasks = [task for task in found.tasks.train if task.id in found.shown]
    return leak_finding(found.leak, sum(bool(answer_texts(task)) for task in tasks))


def shown_texts(messages: Sequence[Message], tools: Sequence[Tool]) -> list[ShownText]:
    """Every text of a first prompt with its place."""
    texts = [
        ShownText(place=f"{message.role} message", text=message.content) for message in messages
    ]
    described = [
        ShownText(place=f"description of tool {tool.name}", text=tool.description) for tool in tools
    ]
    return [*texts, *described]


def _says(text: str, label: str | None) -> bool:
    return label is not None and plain_pattern(label).search(normal(text)) is not None
