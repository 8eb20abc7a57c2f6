"""One rollout in the terminal view, turn by turn, and its tokens with all their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from agentrl.inspect.pages.rollout import rollout_answer
from agentrl.inspect.pages.tokens import tokens_answer
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import visible
from agentrl.inspect.terminal import text as words
from agentrl.inspect.terminal.lines import Lines
from agentrl.inspect.terminal.rollout_text import worth_line
from agentrl.inspect.terminal.view import View, neighbour, reader_of


class RolloutView(View):
    """One rollout turn by turn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t,enter", "tokens", "tokens"),
        Binding("n", "sibling(1)", "next sibling"),
        Binding("p", "sibling(-1)", "previous"),
        Binding("left_square_bracket", "same_task(-1)", "task earlier"),
        Binding("right_square_bracket", "same_task(1)", "task later"),
    ]

    def __init__(self, reader: RunReader, kind: str, step: int, rollout: str) -> None:
        super().__init__()
        self.reader, self._at = reader, (kind, step, rollout)
        self._answer: Mapping[str, Any] = {}

    def pane(self) -> Lines:
        """A pane of lines."""
        return Lines(id="pane")

    def read(self, width: int) -> tuple[Mapping[str, Any], list[Text]]:
        """The rollout, and its turns as lines."""
        answer = rollout_answer(reader_of(self), *self._at)
        return answer, list(words.rollout_lines(answer, width))

    def show(self, answer: Any) -> None:
        """Show reward and ending above the turns."""
        answer, lines = answer
        self._answer = answer
        self.query_one("#pane", Lines).show_all(lines)
        title = visible(answer["task_id"], "bold")
        title.append_text(visible(f"  {self._at[0]} step {self._at[1]}  {self._at[2]}", "dim"))
        worth = worth_line(answer)
        worth.append(f"  {answer['action_tokens']} tokens sampled", style="dim")
        self.head(title, worth)

    def action_tokens(self) -> None:
        """Open the tokens of the first row."""
        if self._answer:
            rows = [row["row_index"] for row in self._answer["rows"]]
            self.app.push_screen(TokensView(reader_of(self), self._at, rows))

    def action_sibling(self, by: int) -> None:
        """Go to the next or previous sibling."""
        siblings = list(self._answer.get("siblings", ()))
        other = neighbour(siblings, self._at[2], by)
        if other is not None:
            self._go((*self._at[:2], other))

    def action_same_task(self, by: int) -> None:
        """Go to the same task in an earlier or later step."""
        keys = [(r["kind"], r["step"], r["rollout_id"]) for r in self._answer.get("same_task", ())]
        steps = sorted({key[1] for key in keys if key[0] == self._at[0]})
        later = neighbour(steps, self._at[1], by)
        found = (key for key in keys if key[:2] == (self._at[0], later))
        other = next(found, None)
        if other is not None:
            self._go(other)

    def _go(self, key: tuple[str, int, str]) -> None:
        self._at = key
        self.query_one("#pane", Lines).scroll_home(animate=False)
        self.reload()


class TokensView(View):
    """Every token of a row with all its numbers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "overlay", "colour by"),
        Binding("r", "row", "next row"),
    ]

    def __init__(self, reader: RunReader, at: tuple[str, int, str], rows: Sequence[int]) -> None:
        super().__init__()
        self.reader, self._at, self._rows = reader, at, list(rows)
        self._row, self._overlay = self._rows[0], 0
        self._tokens: Mapping[str, Any] = {}

    def pane(self) -> Lines:
        """Lines with a cursor."""
        return Lines(cursor=True, id="pane")

    def read(self, width: int) -> Mapping[str, Any]:
        """The tokens of the row."""
        return tokens_answer(reader_of(self), *self._at, self._row)

    def show(self, answer: Any) -> None:
        """Go to the first sampled token."""
        first = not self._tokens
        self._tokens = answer
        self._show_tokens()
        if first:
            # A pane can only be scrolled once it knows its size.
            self.call_after_refresh(self.query_one("#pane", Lines).begin, self._tokens["n_prompt"])

    def _show_tokens(self) -> None:
        tokens, overlay = self._tokens, words.OVERLAYS[self._overlay]
        total = len(tokens["ids"])
        title = visible(self._at[2], "bold").append(
            f"  row {self._row}, {total} tokens, coloured by "
        )
        notes = [visible(tokens["note"], "dim")] if tokens["note"] else []
        self.head(title.append(overlay, style="bold"), *notes, words.token_head())
        line: Callable[[int], Text] = lambda index: words.token_line(tokens, index, overlay)  # noqa: E731
        self.query_one("#pane", Lines).show(line, total, 240)

    def action_overlay(self) -> None:
        """Colour by the next number."""
        self._overlay = (self._overlay + 1) % len(words.OVERLAYS)
        if self._tokens:
            self._show_tokens()

    def action_row(self) -> None:
        """Go to the next row of the rollout."""
        self._row = self._rows[(self._rows.index(self._row) + 1) % len(self._rows)]
        self.reload()
