"""Questions about tasks, rollouts to find and two sets of rollouts, as the page asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentrl.inspect.pages.compare.answer import compare_answer
from agentrl.inspect.pages.compare.sets import Side, rollouts_of_cause
from agentrl.inspect.pages.find import find_answer
from agentrl.inspect.pages.find_line import Question
from agentrl.inspect.pages.task import task_answer
from agentrl.inspect.pages.task_cells import parse_steps
from agentrl.inspect.pages.tasks import TaskQuestion, tasks_answer, usual_kind
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.web.library import Library
from agentrl.inspect.web.request_parameters import (
    find_question,
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


def _find(library: Library, query: Mapping[str, str]) -> Any:
    reader = library.reader(required(query, "run"))
    question = find_question(query)
    cause = optional(query, "cause")
    if cause is not None:
        first = _side_of(reader, question)
        second = _other_side(library, reader, query) or first
        question = replace(question, among=rollouts_of_cause(first, second, cause))
    return find_answer(reader, question)


def _side_of(reader: RunReader, question: Question) -> Side:
    """The rollouts of the kind and steps that a question asks for."""
    reader.rows.refresh()
    kind = question.kind or usual_kind(reader)
    steps = reader.rows.steps(kind) or [0]
    first, last = question.step_min, question.step_max
    return Side(
        reader=reader,
        kind=kind,
        steps=(steps[0] if first is None else first, steps[-1] if last is None else last),
    )


def _other_side(library: Library, reader: RunReader, query: Mapping[str, str]) -> Side | None:
    """The rollouts that those of a cause are compared with: `KIND STEPS`, after it the run if it
    is another one.

    Raises:
        ValueError: it is none of this.
    """
    text = query.get("against", "").strip()
    if not text:
        return None
    kind, _, rest = text.partition(" ")
    steps, _, run = rest.partition(" ")
    if not steps:
        raise ValueError(
            f"against: got {text[:100]!r}, expected a kind and steps, as eval/held 0, "
            "and after them the run if it is another one"
        )
    other = library.reader(run) if run else reader
    return Side(reader=other, kind=kind, steps=parse_steps("against", steps))


TASK_ANSWERS: Mapping[str, Callable[[Library, Mapping[str, str]], Any]] = {
    "tasks": _tasks,
    "task": _task,
    "compare": _compare,
    "find": _find,
}
"""Name of a question to what answers it."""
