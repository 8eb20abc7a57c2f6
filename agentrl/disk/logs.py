"""Sends log records to the run directory while a run lasts, and quiets some libraries."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import shortened

_QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
_COLOURS = {"FORCE_COLOR", "TTY_COMPATIBLE"}
"""Variables that ask for colours in files, which rich takes for terminals then."""
_LOUD = ("aiohttp", "httpx", "httpcore", "urllib3", "filelock", "fsspec", "matplotlib", "asyncio")

_RECORD_CHARS = 64_000
"""Characters of one record; libraries and users log texts of any length."""
_SUSPECT = re.compile(r"[^\n\t -~]")


def quiet_libraries() -> None:
    """Keep progress bars and advice of libraries off the terminal; call before importing them.

    A variable the user has set keeps its value, so TRANSFORMERS_VERBOSITY=info still works. In a
    file each state of a bar is a line: there no library draws one, the user's code neither.
    """
    variables = dict(_QUIET)
    if not sys.stderr.isatty():
        variables["TQDM_DISABLE"] = "1"
    if os.environ.keys() & _COLOURS and not (sys.stdout.isatty() and sys.stderr.isatty()):
        variables["TTY_INTERACTIVE"] = "0"
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.WARNING)


def quiet_transformers() -> None:
    """Its bars for loading and saving weights draw over a live view; call after importing it."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append everything from INFO up, warnings of libraries too, to a file.

    What does not print is spelled out, and a line after the first of a record begins with `| `, so
    text of an environment can neither command a terminal nor pass for a record.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Plain("%(asctime)s %(levelname)-7s %(name)s: %(message)s", validate=True))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO) if level else logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


class _Plain(logging.Formatter):
    """Records whose text commands no terminal and forges no other record."""

    def format(self, record: logging.LogRecord) -> str:
        text = shortened(super().format(record), _RECORD_CHARS)
        return _SUSPECT.sub(_spelled, text).replace("\n", "\n| ")


def _spelled(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else ascii(character)[1:-1]
