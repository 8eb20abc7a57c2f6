"""Puzzles of one family, and rewards of answers to them."""

from __future__ import annotations

from agentrl_envs.reasoning import ReasoningTask, make_tasks

from agentrl.env import Action
from agentrl.types import Task


def draw(family: str, **args) -> Task:
    return make_tasks(families=[family], n=1, **args)[0]


async def answered(task: Task, *texts: str, **args) -> list:
    env = ReasoningTask(**args)
    await env.reset(task)
    steps = []
    for text in texts:
        steps.append(await env.step(Action(text=text)))
        if steps[-1].done:
            break
    await env.close()
    return steps
