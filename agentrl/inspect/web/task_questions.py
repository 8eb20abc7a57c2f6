"""Questions about tasks and about two sets of rollouts, as the page asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentrl.inspect.pages.compare.answer import Side, compare_answer
from agentrl.inspect.pages.task import task_answer
from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer
from agentrl.inspect.web.library import Library
from agentrl.inspect.web.request_parameters import (
    optional,
    required,
    steps_or_none,
    whole_or_none,
)

_MOST_TASKS = 1000


def _tasks(library: Library, query: Mapping[str, str]) -> Any:
    limit = whole_or_none(query, "limit")
    label, _, value = query.get("label", "").partition(":")
    question = TaskQuestion(
        kind=optional(query, "kind"),
        before=steps_or_none(query, "before"),
        after=steps_or_none(query, "after"),
        measure=query.get("measure") or "score",
        text=query.get("q", ""),
        was=optional(query, "was"),
        labels={label: value} if label else {},
        sort=query.get("sort") or "gain",
        limit=min(_MOST_TASKS, 100 if limit is None else limit),
        offset=whole_or_none(query, "offset") or 0,
    )
    return tasks_answer(library.reader(required(query, "run")), question)


def _task(library: Library, query: Mapping[str, str]) -> Any:
    return task_answer(library.reader(required(query, "run")), required(query, "task"))


def _compare(library: Library, query: Mapping[str, str]) -> Any:
    run = required(query, "run")
    first = library.reader(run)
    second = library.reader(query.get("b_run") or run)
    return compare_answer(
        Side(reader=first, kind=optional(query, "kind"), steps=steps_or_none(query, "steps")),
        Side(reader=second, kind=optional(query, "b_kind"), steps=steps_or_none(query, "b_steps")),
    )


TASK_ANSWERS: Mapping[str, Callable[[Library, Mapping[str, str]], Any]] = {
    "tasks": _tasks,
    "task": _task,
    "compare": _compare,
}
"""Name of a question to what answers it."""
