"""`RUN/health.jsonl`: one line for each change of a verdict and each decision of a rule.

Appended to, never rewritten, so a line is there or it is not; a torn one is left out by readers.
Writing is a recording boundary: a full disk costs the line and a warning, not the run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from agentrl.data.run.read import read_objects
from agentrl.machine.files import append_line

logger = logging.getLogger(__name__)

What = Literal["verdict", "rule", "decision", "silent"]
_WHATS: tuple[str, ...] = get_args(What)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the journal."""

    step: int
    """Training steps done when it happened."""
    what: What
    """`verdict`: a detector changed its mind; `rule`: a rule's streak is long enough; `decision`:
    what was done about it; `silent`: a rule has no metric to watch."""
    text: str
    """For people, evidence included."""
    rollbacks: int = 0
    """Rollbacks before it: the same step is there again after each."""
    rule: str = ""
    """The rule as it is written; empty for verdicts."""
    action: str = ""
    """`warn`, `pause`, `continue`, `stop` or `rollback`; empty for verdicts."""
    first_step: int | None = None
    """First step of the streak, or of the finding."""
    detector: str = ""
    """Whose verdict."""
    status: str = ""
    """The verdict's status."""
    time: float = 0.0
    """Seconds since 1970; set when it is written."""


class HealthJournal:
    """Appends to one file."""

    def __init__(self, path: Path) -> None:
        """The file is made with the first line."""
        self.path = Path(path)
        self._failed = False

    def write(self, event: Event) -> bool:
        """Append a line in one system call; never raises for what the disk does.

        Returns:
            Whether it is on the disk.
        """
        empty = ("", None)
        data = {name: value for name, value in asdict(event).items() if value not in empty}
        data["time"] = round(time.time(), 3)
        try:
            append_line(self.path, json.dumps(data).encode())
        except OSError as error:  # recording boundary: what watches a run must not end it
            if not self._failed:
                self._failed = True
                logger.warning("%s cannot be written, the run goes on: %s", self.path, error)
            return False
        return True

    def read(self) -> list[Event]:
        """Every line that is one of ours, oldest first; none where there is no file."""
        found = (_event(data) for data in read_objects(self.path))
        return [event for event in found if event is not None]


_TYPES = {"text": str, "rule": str, "action": str, "detector": str, "status": str}


def _event(data: Mapping[str, Any] | None) -> Event | None:
    if data is None or data.get("what") not in _WHATS:
        return None
    known = {field.name: data[field.name] for field in fields(Event) if field.name in data}
    if not all(isinstance(known.get(name, ""), kind) for name, kind in _TYPES.items()):
        return None
    numbers = [known.get("step"), known.get("rollbacks", 0), known.get("first_step") or 0]
    if not all(isinstance(number, int) for number in numbers) or "text" not in known:
        return None
    return Event(**known)
