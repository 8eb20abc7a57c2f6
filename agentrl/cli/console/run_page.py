"""The page of a run that trains: the command that opens it, or its address.

With `agentrl train --inspect` a child process serves it as long as the run goes on. Whatever
happens to that process, the run goes on without it.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from agentrl.machine.processes.child import ChildEnded, ChildProcess

_CHILD = "agentrl.inspect.web.child:serve_run"
_START_S = 60.0


class RunPage:
    """Shows the address of a run's page, once."""

    def __init__(self, *, served: bool) -> None:
        """Start nothing yet; `served` starts a server instead of naming the command that does."""
        self._served, self._said = served, False
        self._child: ChildProcess | None = None

    def open(self, run: Path, say: Callable[[str], None]) -> None:
        """Show how to watch the run in `run`, now or as soon as its server answers."""
        if self._said:
            return
        self._said = True
        if not self._served:
            say(watch_line(run))
            return
        try:
            self._child = child = ChildProcess(_CHILD)
        except OSError as error:
            say(_without(run, str(error)))
            return
        threading.Thread(target=_announce, args=(child, run, say), daemon=True).start()

    def close(self) -> None:
        """End the server, if there is one."""
        if self._child is not None:
            self._child.close()


@contextlib.contextmanager
def run_page(*, served: bool) -> Iterator[RunPage]:
    """A page that is closed in any case."""
    page = RunPage(served=served)
    try:
        yield page
    finally:
        page.close()


def watch_line(run: Path) -> str:
    """The command that opens the page of a run.

    Example:
        >>> watch_line(Path("runs/my run"))
        "watch it: agentrl inspect 'runs/my run'"
    """
    return f"watch it: agentrl inspect {shlex.quote(str(run))}"


def _announce(child: ChildProcess, run: Path, say: Callable[[str], None]) -> None:
    try:
        child.send({"run": str(run.absolute())})
        said = child.receive(_START_S).head
    except (ChildEnded, TimeoutError) as error:
        if child.alive or not _closed(error):
            say(_without(run, str(error) or f"no answer within {_START_S:g} s"))
        return
    if "address" in said:
        say(f"watch it: {said['address']}")
    else:
        say(_without(run, said.get("error", "")))


def _closed(error: Exception) -> bool:
    """Whether the server was ended by `close`, since the run is over."""
    return isinstance(error, ChildEnded) and error.status == -9


def _without(run: Path, why: str) -> str:
    return f"the page of the run is not served ({why}); {watch_line(run)}"
