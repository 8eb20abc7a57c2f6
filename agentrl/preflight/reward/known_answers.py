"""Try answers whose worth is known on the reward code, through the real environment.

Does an empty string get rewarded, does a single token score as much as a solution, do high scores
mean good answers? A policy finds out in the first hundred steps; these answers find out before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.schema import RolloutSection
from agentrl.env import EnvContext, Solution
from agentrl.errors import RunError
from agentrl.preflight.reward.scripted_generator import ScriptedGenerator, script_of
from agentrl.rollout import adapt_env
from agentrl.runtime.assembly.parts import make_worker, open_sandboxes
from agentrl.runtime.assembly.tools import open_tools
from agentrl.runtime.drivers.concurrency import RolloutLimit
from agentrl.runtime.drivers.groups import run_groups, stable_seed
from agentrl.tool import Tool
from agentrl.types import FinishReason, SamplingParams, Task, ToolCall, Trajectory

TASKS = 4
"""Tasks that every kind of answer is tried on, spread over the dataset."""
IN_FLIGHT = 2 * (os.cpu_count() or 1)
"""Answers that are tried at once."""
_NAME = "preflight"
_LONGEST = 1500
"""Tokens of the long non-answer, at most."""
_FILLER = "Let me think about this carefully, step by step, as it is an interesting question. "
_TOKENS = ("1", "yes", "A")
_FORM = "```python\n\n```\n<answer></answer>\n\\boxed{}"


class AnswerKind(StrEnum):
    """Kind of an answer, by which its worth is known before it is judged."""

    EMPTY = "empty"
    """The stop token and nothing else."""
    TOKEN = "one token"
    """`1`, `yes` or `A`."""
    LONG = "long non-answer"
    """Fluent words without content."""
    FORM = "format alone"
    """A code block, an answer tag and a box with nothing in them."""
    ECHO = "the prompt again"
    """The task's own words."""
    LABEL = "the label"
    """Bare text of `Task.label`; may or may not be a good answer."""
    SOLUTION = "the solution"
    """Answer that the environment gives as the solution."""


NOTHING = (AnswerKind.EMPTY, AnswerKind.TOKEN, AnswerKind.LONG, AnswerKind.FORM, AnswerKind.ECHO)
"""Kinds that no reward should pay for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedAnswer:
    """One answer and what came of it."""

    kind: str
    """A `Kind`, or `sample` for what a model wrote."""
    task_id: str
    """`Task.id`."""
    text: str
    """Text of the answer, turns joined by line breaks."""
    reward: float | None
    """None when it cannot be trusted."""
    score: float | None
    """The environment's 0-1 verdict, or the reward where it gives none."""
    termination: str
    """Reason for the end of the rollout."""
    detail: str
    """Reason for a failure."""
    tokens: int
    """Sampled tokens."""
    sandbox: bool
    """Whether a sandbox was opened."""
    group_id: str = ""
    """Id of the group of its siblings."""
    truncated: bool = False
    """Whether a turn was truncated at its token limit."""


def answer_of(row: Trajectory, kind: str) -> TriedAnswer:
    """From the last row of a rollout."""
    return TriedAnswer(
        kind=kind,
        task_id=row.task_id,
        text="\n".join(turn.text for turn in row.turns if turn.role == "assistant"),
        reward=row.reward if row.rule.reward_trusted else None,
        score=row.score if row.rule.reward_trusted else None,
        termination=str(row.termination),
        detail=row.termination_detail,
        tokens=row.num_action_tokens,
        sandbox="sandbox/opened" in row.usage,
        group_id=row.group_id,
        truncated=any(turn.finish_reason is FinishReason.LENGTH for turn in row.turns),
    )


async def try_answers(
    config: RunConfig,
    *,
    base: Path,
    tokenizer: Any,
    chat: ChatFormat,
    tasks: Sequence[Task],
    make_env: Callable[[], Any],
) -> list[TriedAnswer]:
    """Put every kind of answer through the rollout loop of the run.

    Args:
        config: of the run.
        base: where its relative paths start.
        tokenizer: of the policy.
        chat: made of it.
        tasks: a few.
        make_env: makes a fresh environment, which may know what solves them.

    Raises:
        AgentrlError: the loop cannot be put together, or `solution` fails.
    """
    async with open_tools(config.env, base=base) as tools:
        solutions = await find_solutions(make_env, tasks, tools)
        return await _play(config, base, tokenizer, chat, tasks, tools, solutions)


async def _play(
    config: RunConfig,
    base: Path,
    tokenizer: Any,
    chat: ChatFormat,
    tasks: Sequence[Task],
    tools: Sequence[Tool],
    solutions: Mapping[str, Solution],
) -> list[TriedAnswer]:
    asked = [
        (kind, task, said)
        for index, task in enumerate(tasks)
        for kind, said in _said(config.rollout, chat, index, task, solutions.get(task.id)).items()
    ]
    scripts = {
        f"{_NAME}/{position:04d}-{task.id}": script_of(said, chat, config.chat)
        for position, (_, task, said) in enumerate(asked)
    }
    sandboxes = await open_sandboxes(config.sandbox, base=base)
    try:
        worker, _ = make_worker(
            config,
            generator=ScriptedGenerator(scripts),
            tokenizer=tokenizer,
            sandboxes=sandboxes,
            tools=tools,
            base=base,
        )
        groups = await run_groups(
            worker,
            [task for _, task, _ in asked],
            name=_NAME,
            n=1,
            sampling=SamplingParams(
                max_tokens=config.rollout.max_turn_tokens, stop_token_ids=chat.stop_token_ids
            ),
            seed=lambda task: stable_seed(config.run.seed, _NAME, task.id),
            limit=RolloutLimit(IN_FLIGHT),
        )
    finally:
        await sandboxes.close()
    kinds = [kind for kind, _, _ in asked]
    return [
        answer_of(group.trajectories[-1], kind) for kind, group in zip(kinds, groups, strict=True)
    ]


async def find_solutions(
    make_env: Callable[[], Any], tasks: Sequence[Task], tools: Sequence[Tool] = ()
) -> dict[str, Solution]:
    """Solutions that the environment gives, by task id; none where it gives none.

    Args:
        make_env: makes a fresh environment.
        tasks: those that are asked for.
        tools: of the config; a solution may need one of them.

    Raises:
        RunError: `solution` raised, or gave what is none.
    """
    found: dict[str, Solution] = {}
    for task in tasks:
        env = adapt_env(make_env())
        env.context = EnvContext(tools=tools)
        try:
            said = env.solution(task)
        except Exception as error:  # boundary to a user's environment, which may raise anything
            raise RunError(
                f"solution of the environment raised on task {task.id!r}: {type(error).__name__}: "
                f"{error}"
            ) from error
        finally:
            await env.close()
        if said is None:
            continue
        turns = [said] if isinstance(said, str) else said
        if not isinstance(turns, Sequence) or not all(isinstance(t, str | ToolCall) for t in turns):
            raise RunError(
                f"solution of the environment gave {type(said).__name__} for task {task.id!r}, "
                "expected text, or a sequence of texts and ToolCalls, or None"
            )
        found[task.id] = said
    return found


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """So many tasks, from the whole of the dataset."""
    return list(tasks)[:: max(1, len(tasks) // count)][:count]


def _said(
    section: RolloutSection, chat: ChatFormat, index: int, task: Task, solution: Solution | None
) -> dict[AnswerKind, Solution]:
    length = min(_LONGEST, section.max_turn_tokens * 3 // 4)
    unit = max(1, len(chat.encode_plain(_FILLER)))
    prompt = task.prompt
    words = prompt if isinstance(prompt, str) else "\n".join(message.content for message in prompt)
    said: dict[AnswerKind, Solution] = {
        AnswerKind.EMPTY: "",
        AnswerKind.TOKEN: _TOKENS[index % len(_TOKENS)],
        AnswerKind.LONG: _FILLER * max(1, length // unit),
        AnswerKind.FORM: _FORM,
        AnswerKind.ECHO: words,
    }
    if isinstance(task.label, str | int | float) and str(task.label):
        said[AnswerKind.LABEL] = str(task.label)
    if solution is not None:
        said[AnswerKind.SOLUTION] = solution
    return said
