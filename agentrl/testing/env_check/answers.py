"""Looks for the answer in what a model reads before its episode is over.

A label may stand there by rights: as one of the choices, as a number by chance. So it counts only
where it follows the label: the same episode with the label of another task shows that one instead.
What the prompt of the task says already is no secret, and neither is what the solution is to find
out with a tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.testing.env_check.episode import Episode, Setting
from agentrl.testing.env_check.findings import broken
from agentrl.testing.env_check.grading import Grading
from agentrl.testing.env_check.script import Played
from agentrl.testing.env_check.values import shown
from agentrl.types import Task, ToolCall

_CUE = re.compile(r"answer|solution|label|expect|truth|gold|correct|target|secret|hidden|should be")
_HIDDEN = re.compile(r"hidden|secret|private|held_?out|(?<![a-z])tests?(?![a-z])")
"""Names of what no model may read a line of."""
_ANSWER = re.compile(r"(?<![a-z])(answers?|solutions?|label|expected|target|ground_?truth|gold)$")
"""Names of answers."""
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
            for path, secret in _secrets(task):
                if not _stands(secret, text) or _stands(secret, prompt):
                    continue
                hidden = _is_hidden(path) and len(secret) >= _LONG
                if hidden or (
                    _is_answer(secret, text, one, grading)
                    and await _follows(setting, tasks, one, place, path)
                ):
                    at = max(0, text.casefold().find(secret.casefold()) - _EXCERPT)
                    message = f"{place} of task {task.id!r} shows {secret!r}: {shown(text[at:])}"
                    setting.add(broken("E504", message))
                    return


def _calls(grading: Grading, task: int) -> Iterator[ToolCall]:
    return (turn for turn in grading.given.get(task, ()) if isinstance(turn, ToolCall))


_Path = tuple[str | int, ...]
"""Names and positions that lead to a value, the first of them `label` or `metadata`."""


def _secrets(task: Task) -> list[tuple[_Path, str]]:
    """Texts that no model should read, with their places in the task, the longest first."""
    leaves = [
        *_leaves(task.label, ("label",)),
        *((("metadata", *path[1:]), text) for path, text in _leaves(task.metadata, ("",))),
    ]
    found = [(p, text) for p, text in leaves if text and (_is_hidden(p) or _is_named(p))]
    return sorted(found, key=lambda one: (-len(one[1]), one[1]))


def _leaves(value: Any, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*path, str(name)))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _leaves(item, (*path, at))
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
        yield path, str(value).strip()


def _is_hidden(path: _Path) -> bool:
    names = [name.casefold() for name in path if isinstance(name, str)]
    return any(map(_HIDDEN.search, names)) and not any(map(_OPEN.search, names))


def _is_named(path: _Path) -> bool:
    """True for what the innermost name calls an answer; in a label with names, `label` is none."""
    name = [name for name in path if isinstance(name, str)][-1].casefold()
    return _ANSWER.search(name) is not None


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
    setting: Setting, tasks: Sequence[Task], one: Played, place: str, path: _Path
) -> bool:
    """True if the same place shows another answer where the task has that."""
    task = tasks[one.script.task]
    value = _at(task, path)
    others = [_at(o, path) for o in tasks if path == ("label",)]
    for other in (*(o for o in others if type(o) is type(value) and o != value), _changed(value)):
        field = str(path[0])
        changed = replace(task, **{field: _put(getattr(task, field), path[1:], other)})
        quiet = replace(setting, add=lambda finding: None)
        again = await Episode.played(quiet, changed, one.script)
        if again is None:
            continue  # an answer that the environment cannot do with
        now = [text for where, text in again.shown if where == place]
        old = str(value).strip()
        return any(_stands(str(other).strip(), text) for text in now) and not all(
            _stands(old, text) for text in now
        )
    return False


def _at(task: Task, path: _Path) -> Any:
    value: Any = getattr(task, str(path[0]))
    for part in path[1:]:
        value = value[part]
    return value


def _put(value: Any, path: _Path, new: Any) -> Any:
    """A copy of a value with another one at a path."""
    if not path:
        return new
    if isinstance(value, Mapping):
        return {k: _put(v, path[1:], new) if k == path[0] else v for k, v in value.items()}
    return [_put(v, path[1:], new) if at == path[0] else v for at, v in enumerate(value)]


def _changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, str):
        if value.lstrip("-").isdigit():
            return str(int(value) + 1)
        return f"{value[::-1]}q"
    return value + 1
