"""Prompts: the question in one, and those of two runs side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from agentrl.inspect.pages.compare.tried import Tried, long_columns
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_json import shown

_USER = re.compile(r"(?:\[INST\]|<[^<>\n]*\buser\b[^<>\n]*>|<[^<>\n]*>user\b)(?:<[^<>\n]*>)*\s*")
"""Where a message of the user begins in a rendered prompt."""
_SPECIAL = re.compile(r"<\|[^<>\n]*\|>|</?(?:s|end_of_turn|start_of_turn)>|\[/INST\]")
"""A special token of a chat template, with which a message ends."""
_QUESTION_CHARS = 600
"""Taken of a prompt without messages."""
_MOST_CHARS = 4000
"""Compared of either prompt."""


def question(prompt: str) -> str:
    """The text of the last user message of a rendered prompt; the prompt's end without one."""
    mark = _last_user(prompt)
    if mark is None:
        return prompt[-_QUESTION_CHARS:].strip()
    return _SPECIAL.split(prompt[mark.end() :], maxsplit=1)[0].strip()


def _last_user(prompt: str) -> re.Match[str] | None:
    return next(iter([*_USER.finditer(prompt)][-1:]), None)


def prompt_pair(
    before: Tried, after: Tried, readers: Sequence[RunReader]
) -> dict[str, str | None] | None:
    """Prompts of both sides if they differ: `a`, `b`, and the `task_id` that both are of.

    They come without special tokens. Without a common task both are what stands before the
    question of the task, and the id is None. None comes back for one run, whose prompts are those
    of its tasks.
    """
    if readers[0] is readers[1]:
        return None
    theirs = set(after.tasks)
    task = next((task for task in before.tasks if task in theirs), None)
    prompts: list[str] = []
    for one, reader in zip((before, after), readers, strict=True):
        number = (
            0
            if task is None
            else int(np.flatnonzero(one.of_task == list(one.tasks).index(task))[0])
        )
        [of] = long_columns(reader, one.places([number]), ["prompt_text"])
        text = of["prompt_text"] or ""
        mark = _last_user(text) if task is None else None
        text = text[: mark.start() if mark else None][:_MOST_CHARS]
        prompts.append(shown(_SPECIAL.sub("", text).strip()))
    if prompts[0] == prompts[1]:
        return None
    return {"task_id": task, "a": prompts[0], "b": prompts[1]}
