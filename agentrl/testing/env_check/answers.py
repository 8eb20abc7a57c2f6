"""Looks for the answer in what a model reads before its episode is over.

A label may stand there by rights: as one of the choices, as a number by chance. So it counts only
where it follows the label: the same episode with the label of another task shows that one instead.
What the prompt of the task says already is no secret, and neither is what the solution is to find
out with a tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from agentrl.testing.env_check.episode import Episode, Failed, NoSuchTool, Setting
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.grading import Grading, label_text
from agentrl.testing.env_check.script import Played
from agentrl.testing.env_check.values import shown
from agentrl.types import Task, ToolCall

_CUE = re.compile(r"answer|solution|label|expect|truth|gold|correct|target|secret|hidden|should be")
_HIDDEN = re.compile(r"hidden|secret|private|held_?out|test|answer|solution|label|truth|gold")
_OPEN = re.compile(r"public|example|visible|sample")
_LONG = 8
"""Characters from which a text of a label stands nowhere by chance."""
_EXCERPT = 40


async def check_shown(
    setting: Setting, tasks: Sequence[Task], solo: Sequence[Played], grading: Grading
) -> None:
    """Report the first place at which an episode shows its label or a hidden test."""
    for one in solo:
        task = tasks[one.script.task]
        used = {f"what the tool {t.name} returns" for t in _calls(grading, one.script.task)}
        prompt = repr(task.prompt)
        for place, text in one.shown:
            if place in used:
                continue
            for secret in _secrets(task):
                if not _stands(secret, text) or _stands(secret, prompt):
                    continue
                whole = len(secret) >= _LONG and secret != label_text(task)
                if whole or (
                    _is_answer(secret, text, one, grading)
                    and await _follows(setting, tasks, one, place, secret)
                ):
                    at = max(0, text.casefold().find(secret.casefold()) - _EXCERPT)
                    message = f"{place} of task {task.id!r} shows {secret!r}: {shown(text[at:])}"
                    setting.add(broken("E504", message))
                    return


def _calls(grading: Grading, task: int) -> Iterator[ToolCall]:
    return (turn for turn in grading.given.get(task, ()) if isinstance(turn, ToolCall))


def _secrets(task: Task) -> list[str]:
    """Texts that no model should read, the longest first."""
    found = [*_leaves(task.label, "label"), *_leaves(task.metadata, "")]
    return sorted(set(found), key=lambda text: (-len(text), text))


def _leaves(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, f"{key} {name}".casefold())
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, key)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value).strip()
        hidden = _HIDDEN.search(key) is not None and not _OPEN.search(key)
        # A short text may be anything; as the label itself it is looked at with its cause.
        if text and hidden and (key == "label" or len(text) >= _LONG):
            yield text


def _stands(secret: str, text: str) -> bool:
    pattern = rf"(?<![\w.]){re.escape(secret.casefold())}(?!\w|\.\d)"
    return re.search(pattern, text.casefold()) is not None


def _is_answer(secret: str, text: str, one: Played, grading: Grading) -> bool:
    """True if what is shown earns the reward, or is announced as the answer."""
    right = grading.right.get(one.script.task)
    if right is not None:
        return any(secret in turn for turn in right.script.turns if isinstance(turn, str))
    at = text.casefold().find(secret.casefold())
    return _CUE.search(text.casefold()[max(0, at - _EXCERPT) : at]) is not None


async def _follows(
    setting: Setting, tasks: Sequence[Task], one: Played, place: str, secret: str
) -> bool:
    """True if the same place shows another label where the task has that."""
    task = tasks[one.script.task]
    others = [o.label for o in tasks if type(o.label) is type(task.label) and o.label != task.label]
    for label in (*others[:1], *_changed(task.label)):
        other = replace(task, label=label)
        async with AsyncExitStack() as stack:
            quiet = replace(setting, add=lambda finding: None)
            try:
                episode = await Episode.begin(quiet, stack, other)
                again = await episode.play(one.script)
            except (Failed, NoSuchTool):
                continue  # a label that the environment cannot do with
        texts = [text for where, text in again.shown if where == place]
        return any(_stands(str(label).strip(), text) for text in texts) and not all(
            _stands(secret, text) for text in texts
        )
    return False


def _changed(label: Any) -> Iterator[Any]:
    """Another label of the same kind."""
    if isinstance(label, int) and not isinstance(label, bool):
        yield label + 1
    elif isinstance(label, float):
        yield label + 1.0
    elif isinstance(label, str):
        yield (
            label.translate({ord(a): b for a, b in zip("0123456789", "1234567892", strict=True)})
            if (label.lstrip("-").isdigit())
            else label[::-1] + "q"
        )
