"""The terminal view itself: a stack of screens that follow the run while it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual.app import App
from textual.binding import BindingType

from agentrl.inspect.read.reader import RunReader
from agentrl.inspect.terminal.find import FindView
from agentrl.inspect.terminal.screens import RunsView, RunView
from agentrl.inspect.terminal.view import FindAsked, View

_LOOK_S = 2.0
"""How often a run is asked whether it has written something."""


class TerminalApp(App[None]):
    """Runs, steps, groups, rollouts, tokens; Enter goes down and Escape back."""

    TITLE = "agentrl inspect"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, readers: Sequence[RunReader]) -> None:
        super().__init__(ansi_color=False)
        self._readers = list(readers)
        # Taken before anything is shown, so that nothing that is written meanwhile is missed.
        self._revisions = _revisions(self._readers)

    def on_mount(self) -> None:
        """Open the only run, or the list of runs."""
        only = self._readers[0] if len(self._readers) == 1 else None
        self.push_screen(RunView(only) if only else RunsView(self._readers))
        self.run_worker(self._look, group="look")

    def on_find_asked(self, message: FindAsked) -> None:
        """Open the search of the run."""
        self.push_screen(FindView(message.reader))

    async def _look(self) -> None:
        """Load the screen again whenever what it shows has been written to."""
        while True:
            await asyncio.sleep(_LOOK_S)
            view = self.screen
            if not isinstance(view, View):
                continue
            readers = [view.reader] if view.reader is not None else self._readers
            # A folder far away may be slow to say when it changed.
            now = await asyncio.to_thread(_revisions, readers)
            if any(self._revisions[name] != mark for name, mark in now.items()):
                self._revisions |= now
                view.reload()


def _revisions(readers: Sequence[RunReader]) -> dict[str, str]:
    return {reader.run.id: reader.revision() for reader in readers}
