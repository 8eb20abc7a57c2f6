"""The table of tasks in the terminal: scores before and after, by gain or by loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from agentrl.inspect.pages.tasks import SORTS, TaskQuestion, tasks_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.terminal.view import TableView, View, reader_of

_MOST_TASKS = 500


class TasksView(TableView):
    """Tasks with their score before and after; Enter opens the newest group of a task."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "sort", "order")]
    columns = ("task", "before", "after", "change", "rollouts")

    def __init__(
        self, reader: RunReader, open_group: Callable[[RunReader, str, int, str], View]
    ) -> None:
        super().__init__()
        self.reader = reader
        self._open_group = open_group
        self._sort = SORTS[0]

    def read(self, width: int) -> Mapping[str, Any]:
        """Compare the first and the last evaluation."""
        return tasks_answer(reader_of(self), TaskQuestion(sort=self._sort, limit=_MOST_TASKS))

    def show(self, answer: Any) -> None:
        """One line a task."""
        steps = [
            f"step {a}" if a == b else f"steps {a} to {b}"
            for a, b in (answer["before"], answer["after"])
        ]
        title = visible(f"tasks of {answer['kind']}", "bold")
        title.append(f"  {steps[0]} against {steps[1]}, by {self._sort}", style="dim")
        self.head(title, _change(answer["change"]))
        self.fill([(_place(answer["kind"], task), _cells(task)) for task in answer["tasks"]])

    def open(self, key: Any) -> View | None:
        """The newest group of a task."""
        _, kind, step, group = key
        return None if group is None else self._open_group(reader_of(self), kind, step, group)

    def action_sort(self) -> None:
        """Take the next order."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self.reload()


def _place(kind: str, task: Mapping[str, Any]) -> tuple[str, str, int | None, str | None]:
    cell = next((c for c in (task["after"], *reversed(task["over"])) if c is not None), None)
    step, group = (None, None) if cell is None else (cell["step"], cell["group_id"])
    return task["task_id"], kind, step, group


def _cells(task: Mapping[str, Any]) -> list[Text | str]:
    cells = [task["before"], task["after"]]
    change = task["change"]
    colour = "" if not change else ("green" if change > 0 else "red")
    return [
        task["task_id"],
        *(number(cell["mean"]) if cell else "" for cell in cells),
        Text(number(change, sign=True), style=colour),
        " / ".join(str(cell["n"]) if cell else "0" for cell in cells),
    ]


def _change(change: Mapping[str, Any] | None) -> Text:
    if change is None:
        return Text("no task was tried in both", style="dim")
    ends = ""
    if change["low"] is not None:
        ends = f" [{number(change['low'], sign=True)}, {number(change['high'], sign=True)}]"
    return Text(
        f"{number(change['before'])} -> {number(change['after'])}, "
        f"{number(change['mean'], sign=True)}{ends} by task; "
        f"{change['gained']} gained, {change['lost']} lost of {change['tasks']}"
    )
