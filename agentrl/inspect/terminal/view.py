"""The base of every screen of the terminal view: heading, pane, keys, loading again.

Files are read in threads, so keys work however long that takes; only `show` touches the screen.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from agentrl.errors import AgentrlError
from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.read.safe_terminal import visible
from agentrl.inspect.terminal.columns import joined_columns
from agentrl.inspect.terminal.lines import Lines

_READS = 3
"""Threads that read for one screen; the answers of all but the newest are lost."""
_PATIENCE_S = 0.2
"""A screen that is not there after so long shows that it is being read."""


class Arrived(Message):
    """The answer that a thread has read for a screen, or its error."""

    def __init__(self, number: int, answer: Any, error: str | None) -> None:
        super().__init__()
        self.number, self.answer, self.error = number, answer, error


class FindAsked(Message):
    """The search of a run is wanted; the app, which knows all screens, opens it."""

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self.reader = reader


class View(Screen[None]):
    """A screen with a heading, one pane and the keys that work here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", "back"),
        Binding("slash", "find", "find"),
        Binding("question_mark", "keys", "keys"),
        Binding("q", "app.quit", "quit"),
    ]
    DEFAULT_CSS = """
    View > #head { height: auto; max-height: 10; padding: 0 1; background: $surface; }
    View DataTable { height: 1fr; }
    """

    reader: RunReader | None = None
    """Whose run this is; None on the list of runs."""
    _wanted = _begun = _shown = 0
    """Numbers of the newest load that was asked for, that a thread began, and that is shown."""
    _reading = 0
    _head: tuple[Text, ...] = ()

    def compose(self) -> ComposeResult:
        """Lay out heading, pane and keys."""
        yield Static(id="head")
        yield self.pane()
        yield Footer(show_command_palette=False)

    def pane(self) -> Table | Lines:
        """The widget below the heading."""
        raise NotImplementedError

    def read(self, width: int) -> Any:
        """Read from the run's files what is shown, in a thread; the screen is left alone.

        Args:
            width: cells that a line of the pane has.

        Raises:
            AgentrlError: what is shown is not there any more, or damaged.
        """
        raise NotImplementedError

    def show(self, answer: Any) -> None:
        """Fill heading and pane with what `read` gave."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Load once there is room."""
        self.call_after_refresh(self.reload)

    def reload(self) -> None:
        """Read and show; what was asked before and is not there yet is not shown any more."""
        self._wanted += 1
        self._begin()
        self.set_timer(_PATIENCE_S, self._draw_head)

    def _begin(self) -> None:
        if self._reading == _READS:
            return
        self._reading, self._begun = self._reading + 1, self._wanted
        width = max(20, self.query_one("#pane").size.width - 2)
        # A thread that is stuck in a read must not keep the program from ending.
        work = partial(contextvars.copy_context().run, self._read, self._begun, width)
        threading.Thread(target=work, daemon=True).start()

    def _read(self, number: int, width: int) -> None:
        answer = error = None
        try:
            answer = self.read(width)
        except AgentrlError as found:
            error = str(found)
        # The outermost boundary: a run may be torn in unknown ways, and a user who looks at it
        # over a slow line must not lose the screen.
        except Exception as found:
            error = f"this cannot be shown: {type(found).__name__}: {found}"
        with contextlib.suppress(RuntimeError):  # the program has ended meanwhile
            self.post_message(Arrived(number, answer, error))

    def on_arrived(self, message: Arrived) -> None:
        """Show the newest answer, or else what is wrong with the run's files."""
        message.stop()
        self._reading -= 1
        if self._begun < self._wanted:
            self._begin()
        if message.number != self._wanted:
            return
        self._shown = message.number
        self._draw_head()
        if message.error is not None:
            self.head(visible(message.error, "bold red"))
            return
        try:
            self.show(message.answer)
        except Exception as error:  # an answer may be torn in unknown ways, too
            self.head(visible(f"this cannot be shown: {type(error).__name__}: {error}", "bold red"))

    def head(self, *lines: Text) -> None:
        """Put lines into the heading."""
        self._head = lines
        self._draw_head()

    def _draw_head(self) -> None:
        first, *more = self._head or (Text(),)
        if self._shown < self._wanted:
            first = first + Text("  reading ...", style="yellow")
        self.query_one("#head", Static).update(Text("\n").join((first, *more)))

    def action_back(self) -> None:
        """Go back to the screen before."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_find(self) -> None:
        """Ask the app for the search of this run."""
        if self.reader is not None:
            self.post_message(FindAsked(self.reader))

    def action_keys(self) -> None:
        """Show or hide the panel of keys."""
        if self.query("HelpPanel"):
            self.app.action_hide_help_panel()
        else:
            self.app.action_show_help_panel()


class Table(DataTable[Text]):
    """A table by rows, with the keys of a pager."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,l,right", "select_cursor", "open"),
        Binding("h,left", "screen.back", "back", show=False),
        Binding("j", "cursor_down", "down", show=False),
        Binding("k", "cursor_up", "up", show=False),
        Binding("g", "scroll_top", "first", show=False),
        Binding("G", "scroll_bottom", "last", show=False),
    ]


class TableView(View):
    """A screen whose pane is a table; Enter opens the row under the cursor."""

    columns: ClassVar[tuple[str, ...]] = ()

    def pane(self) -> Table | Lines:
        """An empty table with its columns."""
        table = Table(cursor_type="row", zebra_stripes=True, id="pane")
        table.add_columns(*(Text(name) for name in self.columns))
        return table

    @property
    def table(self) -> Table:
        """The table on the screen."""
        return self.query_one("#pane", Table)

    def fill(self, rows: Sequence[tuple[Any, Sequence[Text | str]]]) -> None:
        """Replace the rows; the cursor stays on the row of the same key.

        Columns get their widths here: a table that measures cells itself does so when it is idle,
        and until then a column of long texts is as wide as its heading.
        """
        before = self.here()
        self.keys = [key for key, _ in rows]
        lines = [[visible(c) if isinstance(c, str) else c for c in cells] for _, cells in rows]
        columns, lines = joined_columns(self.columns, lines)
        self.table.clear(columns=True)
        for position, name in enumerate(columns):
            texts = [Text(name), *(cells[position] for cells in lines)]
            self.table.add_column(texts[0], width=max(map(_cells_of, texts)))
        for cells in lines:
            self.table.add_row(*cells)
        if before in self.keys:
            self.table.move_cursor(row=self.keys.index(before))

    keys: Sequence[Any] = ()

    def here(self) -> Any:
        """The key of the row under the cursor; None in an empty table."""
        row = self.table.cursor_row
        return self.keys[row] if 0 <= row < len(self.keys) else None

    def open(self, key: Any) -> View | None:
        """The screen behind a row."""
        raise NotImplementedError

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the row under the cursor."""
        event.stop()
        key = self.here()
        view = None if key is None else self.open(key)
        if view is not None:
            self.app.push_screen(view)


def _cells_of(text: Text) -> int:
    return max((line.cell_len for line in text.split()), default=0)


def reader_of(view: View) -> RunReader:
    """The run of a screen that has one."""
    assert view.reader is not None
    return view.reader


def neighbour(items: Sequence[Any], here: Any, by: int) -> Any | None:
    """The item after or before `here`; None at the ends."""
    at = items.index(here) + by if here in items else 0
    return items[at] if 0 <= at < len(items) else None
