"""Finding rollouts in the terminal view: one line of words and filters, one line a hit."""

from __future__ import annotations

import re
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import Footer, Input, Static

from agentrl.inspect.pages.find import find_answer
from agentrl.inspect.pages.find_line import FILTERS, parse_question
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import number, visible
from agentrl.inspect.terminal.rollout import RolloutView
from agentrl.inspect.terminal.view import TableView, View, reader_of

_HITS = 100


class FindView(TableView):
    """Rollouts by text and filters, as in `answer: task:sum reward<0.5`."""

    columns = ("step", "kind", "task", "reward", "ended by", "where")

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self.reader = reader
        self._asked, self._is_new = "", False

    def compose(self) -> ComposeResult:
        """A line to type into above the hits."""
        yield Static(id="head")
        yield Input(placeholder=f"words, and filters such as {FILTERS}", id="asked")
        yield self.pane()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show nothing until words are typed."""
        self.query_one("#asked", Input).focus()
        self.head(Text("find rollouts", style="bold"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search for the words that were entered."""
        self._asked, self._is_new = event.value, True
        self.reload()

    def reload(self) -> None:
        """Nothing before there are words."""
        if self._asked.strip():
            super().reload()

    def read(self, width: int) -> dict[str, Any]:
        """Find the rollouts in the run's files."""
        return find_answer(reader_of(self), parse_question(self._asked, limit=_HITS))

    def show(self, answer: Any) -> None:
        """One line a hit."""
        hits = answer["hits"]
        more = f", the first {len(hits)}" if answer["total"] > len(hits) else ""
        self.head(Text(f"{answer['total']} rollouts{more} in {answer['took_ms']:.0f} ms"))
        self.fill([((hit["kind"], hit["step"], hit["rollout_id"]), _cells(hit)) for hit in hits])
        if hits and self._is_new:
            self.table.focus()
        self._is_new = False

    def action_find(self) -> None:
        """Go back to the line of words."""
        self.query_one("#asked", Input).focus()

    def open(self, key: Any) -> View | None:
        """The view of the rollout of a hit."""
        return None if self.reader is None else RolloutView(self.reader, *key)


def _cells(hit: dict[str, Any]) -> list[Text | str]:
    where = Text()
    if hit["snippet"]:
        before, match, after = (re.sub(r"\s+", " ", part) for part in hit["snippet"])
        where.append_text(visible(before[-30:])).append_text(visible(match, "reverse"))
        where.append_text(visible(after[:40]))
    return [
        str(hit["step"]),
        hit["kind"],
        hit["task_id"],
        number(hit["reward"]),
        hit["termination"],
        where,
    ]
