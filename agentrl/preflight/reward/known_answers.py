"""Answers whose worth is known before they are judged, and what became of them.

Does an empty string get rewarded, does a single token score as much as a solution, do high scores
mean good answers? A policy finds out in the first hundred steps; these answers find out before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.chat import ChatFormat
from agentrl.config.schema import RolloutSection
from agentrl.env import EnvContext, Solution, asked
from agentrl.errors import RunError
from agentrl.rollout import adapt_env
from agentrl.rollout.adapters.solutions import solution_of
from agentrl.tool import Tool
from agentrl.types import FinishReason, Task, Trajectory

TASKS = 4
"""Tasks that every kind of answer is tried on, spread over the dataset."""
MORE_TASKS = 28
"""Tasks that the solution alone is tried on where it solves none of the first."""
IN_FLIGHT = 2 * (os.cpu_count() or 1)
"""Answers that are tried at once."""
SOLVED = 0.5
"""Score from which the environment calls an answer right."""
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
    OTHER = "another task's solution"
    """A well-formed answer to something else, where labels tell that it is wrong here."""
    SOLUTION = "the solution"
    """Answer that the environment gives as the solution."""


LIMITS = {
    "max_turns": "rollout.max_assistant_turns and max_user_turns",
    "max_tokens": "rollout.max_response_tokens",
    "context_full": "rollout.max_context_tokens",
}
"""Limit that is too small where a rollout ends so."""
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
    duration_s: float = 0.0
    """Wall time of the rollout in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAnswer:
    """One answer that is to be graded."""

    kind: AnswerKind
    """Decides its worth."""
    task: Task
    """The task that it answers."""
    said: Solution
    """The answer."""


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
        duration_s=row.duration_s,
    )


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
            if (said := await solution_of(env, task)) is not None:
                found[task.id] = said
        except Exception as error:  # boundary to a user's environment, which may raise anything
            raise RunError(
                f"solution of the environment raised on task {task.id!r}: {type(error).__name__}: "
                f"{error}"
            ) from error
        finally:
            await asked(env.close)
    return found


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """So many tasks, from the whole of the dataset."""
    return list(tasks)[:: max(1, len(tasks) // count)][:count]


def answers_to(
    section: RolloutSection,
    chat: ChatFormat,
    tasks: Sequence[Task],
    solutions: Mapping[str, Solution],
) -> list[AskedAnswer]:
    """All answers that are tried on a few tasks.

    Args:
        section: limits the length of the long one.
        chat: counts its tokens.
        tasks: to be answered.
        solutions: by task id, where known.
    """
    right = {task.id: solutions.get(task.id, label_text(task)) for task in tasks}
    asked: list[AskedAnswer] = []
    for index, task in enumerate(tasks):
        said = _said(section, chat, index, task, solutions.get(task.id))
        turned = [*tasks[index + 1 :], *tasks[:index]]
        other = next((right[o.id] for o in turned if _differs(task, o, right)), None)
        if other is not None:
            said[AnswerKind.OTHER] = other
        asked += [AskedAnswer(kind=kind, task=task, said=text) for kind, text in said.items()]
    return asked


def _differs(task: Task, other: Task, right: Mapping[str, Solution | None]) -> bool:
    """Whether the answer to another task is surely none to this: label and text differ."""
    theirs = right[other.id]
    return (
        isinstance(theirs, str)
        and bool(theirs)
        and task.label is not None
        and task.label != other.label
        and theirs != right[task.id]
    )


def label_text(task: Task) -> str | None:
    """Text of a label that is a word or a number; None for any other."""
    label = task.label
    return str(label) if isinstance(label, str | int | float) and str(label) else None


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
    if (label := label_text(task)) is not None:
        said[AnswerKind.LABEL] = label
    if solution is not None:
        said[AnswerKind.SOLUTION] = solution
    return said
