"""A scrolling pane of lines that are made when they come into sight: 10^5 of them cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

_ABOVE = 3


class Lines(ScrollView, can_focus=True):
    """Lines by number, with a cursor where `cursor` is set."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--cursor"}
    DEFAULT_CSS = """
    Lines { height: 1fr; }
    Lines > .lines--cursor { background: $primary 40%; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("space,pagedown", "page(1)", "page down", show=False),
        Binding("b,pageup", "page(-1)", "page up", show=False),
        Binding("g,home", "move(-1000000000)", "first", show=False),
        Binding("G,end", "move(1000000000)", "last", show=False),
    ]

    def __init__(self, *, cursor: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._line: Callable[[int], Text] = lambda index: Text()
        self._count = 0
        self._has_cursor = cursor
        self.position = 0
        """Line of the cursor."""

    def show(self, line: Callable[[int], Text], count: int, width: int) -> None:
        """Show `count` lines, none wider than `width` cells."""
        self._line, self._count = line, count
        self.position = min(self.position, max(0, count - 1))
        self.virtual_size = Size(width, count)
        self.refresh()

    def show_all(self, lines: Sequence[Text]) -> None:
        """Show lines that are there already."""
        width = max((line.cell_len for line in lines), default=0)
        self.show(lambda index: lines[index], len(lines), width)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        across, down = self.scroll_offset
        width = self.size.width
        index = down + y
        if index >= self._count:
            return Strip.blank(width, self.rich_style)
        text = self._line(index)
        text.end = ""
        strip = Strip(text.render(self.app.console), text.cell_len)
        strip = strip.crop_extend(across, across + width, self.rich_style)
        style = self.rich_style
        if self._has_cursor and index == self.position:
            style += self.get_component_rich_style("lines--cursor", partial=True)
            return Strip(Segment.apply_style(strip, post_style=style), width)
        return strip.apply_style(style)

    def begin(self, position: int) -> None:
        """Put the cursor on a line, with a few above it."""
        self.position = min(max(0, position), max(0, self._count - 1))
        self.scroll_to(y=max(0, self.position - _ABOVE), animate=False)
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor, or the view where there is none."""
        if not self._has_cursor:
            self.scroll_to(y=max(0, self.scroll_offset.y + by), animate=False)
            return
        self.position = min(max(0, self.position + by), max(0, self._count - 1))
        self.scroll_to_region(
            Region(self.scroll_offset.x, self.position, 1, 1), animate=False, force=True
        )
        self.refresh()

    def action_page(self, by: int) -> None:
        """Move by a screen."""
        self.action_move(by * max(1, self.size.height - 1))
