"""Reports what an environment changes that belongs to the whole process.

Signals, clocks and streams are put back while user code runs, and the log says so; the log is what
is read here, so that one place decides what is put back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentrl.testing.env_check.findings import broken
from agentrl.types.finding import Finding

_RESTORED = "agentrl.plugins.process_state"


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def process_changes(add: Callable[[Finding], None]) -> Iterator[None]:
    """Report what was changed within it; the folder is put back."""
    logger, collector = logging.getLogger(_RESTORED), _Collector()
    level, propagate, folder = logger.level, logger.propagate, Path.cwd()
    logger.addHandler(collector)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate
        now = _folder()
        if now != folder:
            os.chdir(folder)
            collector.messages.insert(0, f"the working folder was changed to {now}")
        if collector.messages:
            add(broken("E410", collector.messages[0]))


def _folder() -> Path | str:
    """The present working folder."""
    with suppress(FileNotFoundError):
        return Path.cwd()
    return "one that is gone"
